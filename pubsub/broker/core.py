"""``BrokerCore``: the objects of a broker that do not depend on its listeners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pubsub.broker.audit_log.audit import AuditLog
from pubsub.broker.clients.client_registry import ClientRegistry
from pubsub.broker.clients.frame_turns import FrameTurns
from pubsub.broker.clients.sessions import SessionRegistry
from pubsub.broker.credentials.issuer_key_refresh import Fetch, IssuerKeyRefresh
from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.credentials.passwords import PasswordVerifier
from pubsub.broker.credentials.queue_keys import QueueKeys
from pubsub.broker.credentials.tokens import TokenVerifier
from pubsub.broker.delivery.cursors import Cursors
from pubsub.broker.figures.counters import Counters
from pubsub.broker.figures.statistics import Sources, Statistics
from pubsub.broker.housekeeping import Housekeeping
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.listeners.listener import Listener
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.routing.router import Router
from pubsub.broker.slices import Slices
from pubsub.broker.topic_space.durability import DurabilityRules
from pubsub.broker.topic_space.topic_lifecycle import TopicLifecycle
from pubsub.broker.topic_space.topic_registry import TopicRegistry
from pubsub.broker.topic_space.unused_names import UnusedNames, topic_seconds
from pubsub.broker.wall_clock import WallClock

if TYPE_CHECKING:
    from pubsub.broker.routing.dispatcher import Dispatcher
    from pubsub.interfaces import IStore

CLOCK = "clock"
"""The table of the store's metadata with the state of the wall clock."""
# Its keys: what the clock remembers, and the limit of timestamps in µs.
_STATE, _LIMIT = "", "limit"


class DispatcherMaker(Protocol):
    """Makes the dispatcher of a broker, as the class does."""

    def __call__(
        self,
        topics: TopicRegistry,
        store: IStore,
        router: Router,
        timestamp: Callable[[], int],
        run_id: int,
    ) -> Dispatcher: ...


class BrokerCore:
    """Makes the objects of a broker in the order of their needs; see ``BrokerService``."""

    def __init__(
        self,
        clock: IReactorTime,
        wall: WallClock,
        store: IStore,
        limits: BrokerLimits,
        draw: Callable[[int], int],
        ring: SecretRing,
        audit: AuditLog,
        durability: DurabilityRules,
        at_tick_end: Callable[[Callable[[], None]], object],
        passwords: PasswordVerifier,
        make_dispatcher: DispatcherMaker,
        fetch_keys: Fetch | None,
    ) -> None:
        self.clock = clock
        self.wall = wall
        self.store = store
        self.limits = limits
        self.counters = Counters()
        self.memory = MemoryBudget(limits.max_memory)
        # So neither the history nor the clients can use up both.
        self.memory.set_aside(limits.history_memory)
        self.slices = Slices(at_tick_end)
        self.frame_turns = FrameTurns(self.slices, at_tick_end)
        self.topics = TopicRegistry(limits.max_topics, self.memory)
        self.router = Router(self.counters, self.memory, clock.seconds, at_tick_end, self.slices)
        self.topics.watch_removal(self.router.mixes.note_ended)
        self.cursors = Cursors(clock, store, self.topics, self.router)
        self.tokens = TokenVerifier(ring, self.memory)
        self.issuer_key_refresh = IssuerKeyRefresh(
            clock, self.tokens, fetch_keys, self.recheck_all, audit.record
        )
        self.passwords = passwords
        self.queue_keys = QueueKeys(self.router, self.tokens, audit, store)
        self.topic_lifecycle = TopicLifecycle(
            self.topics, store, self.router, self.queue_keys, durability
        )
        self.unused_names = self._make_unused_names()
        self.sessions = self._make_sessions(draw)
        self.clients = ClientRegistry()
        self.dispatcher = make_dispatcher(self.topics, store, self.router, wall.timestamp, draw(60))
        self.housekeeping = self._make_housekeeping()

    def _make_unused_names(self) -> UnusedNames:
        limits = self.limits
        return UnusedNames(
            self.clock,
            self.slices,
            self.store,
            self.topics,
            self.topic_lifecycle,
            self.queue_keys,
            topic_seconds(limits.topic_expiry, limits.resume_window),
            limits.identity_expiry,
        )

    def _make_sessions(self, draw: Callable[[int], int]) -> SessionRegistry:
        return SessionRegistry(
            lambda: draw(64),
            self.clock.seconds,
            self.limits.resume_window,
            self.limits.max_sessions,
            self.memory,
            self.counters.drop,
        )

    def _make_housekeeping(self) -> Housekeeping:
        return Housekeeping(
            self.clock,
            self.wall,
            self.router,
            self.sessions,
            self.clients,
            self.slices,
            self.topic_lifecycle,
            self.memory,
            self.limits.memory_seconds,
        )

    def make_statistics(self, listeners: Sequence[Listener]) -> Statistics:
        """Return the figures of the broker with these ``listeners``."""
        sources = Sources(
            clock=self.clock,
            wall=self.wall,
            store=self.store,
            counters=self.counters,
            memory=self.memory,
            topics=self.topics,
            router=self.router,
            cursors=self.cursors,
            sessions=self.sessions,
            tokens=self.tokens,
            issuers=self.issuer_key_refresh.figures,
            listeners=listeners,
        )
        return Statistics(sources)

    def recheck_all(self) -> Deferred[tuple[int, int]]:
        """Recheck every live subscription; fires with how many stay and how many end."""
        results: Counter[bool] = Counter()
        work = self.router.recheck_all(self.topics.with_prefix(b""), results)
        return self.slices.finish(work).addCallback(lambda _: (results[True], results[False]))

    def start_clock(self) -> None:
        """Start the wall clock with its state in the store, which is open."""
        store, wall, found = self.store, self.wall, dict(self.store.items(CLOCK))
        limit = found.get(_LIMIT)
        wall.remember = lambda text: store.put(CLOCK, _STATE, text.encode())
        wall.remember_limit = lambda limit: store.put(CLOCK, _LIMIT, str(limit).encode())
        wall.start(
            store.last_timestamp,
            found.get(_STATE, b"").decode(errors="replace"),
            None if limit is None else int(limit),
        )
        # Subscriptions end with their tokens, at a time of the wall clock.
        self.wall.moved = self.recheck_all
