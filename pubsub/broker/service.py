"""``BrokerService``: composes the parts of the broker, starts and stops them.

It is the parent of the listeners' services, so Twisted starts and stops them with it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.application.service import IService, IServiceCollection, MultiService
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pubsub.broker.audit import AuditLog
from pubsub.broker.client_registry import ClientRegistry
from pubsub.broker.counters import Counters
from pubsub.broker.cursor import Cursors
from pubsub.broker.dispatcher import Dispatcher
from pubsub.broker.durability import DurabilityRules
from pubsub.broker.events import PROTOCOL as EVENTS_PROTOCOL
from pubsub.broker.events import TOPIC as EVENTS_TOPIC
from pubsub.broker.events import Events
from pubsub.broker.expiry import Expiry
from pubsub.broker.housekeeping import Housekeeping
from pubsub.broker.limits import BrokerLimits, TokenBucket
from pubsub.broker.listener import Listener
from pubsub.broker.master_secrets import SecretRing
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.parts import BrokerParts
from pubsub.broker.queue_keys import QueueKeys
from pubsub.broker.router import Router
from pubsub.broker.sessions import SessionRegistry
from pubsub.broker.slices import Slices
from pubsub.broker.token_throttle import VERIFICATIONS
from pubsub.broker.tokens import TokenVerifier
from pubsub.broker.topic_lifecycle import TopicLifecycle
from pubsub.broker.topic_registry import TopicRegistry
from pubsub.broker.wall_clock import WallClock
from pubsub.errors import Refused, StartError
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.interfaces import IStore

CLOCK = "clock"
"""The table of the store's metadata with what the wall clock remembers."""
log = Logger()
_Shared = TypeVar("_Shared")


class BrokerService(MultiService):
    """The broker. ``clock`` is the reactor, whose time must be monotonic; ``wall`` is the time of
    messages and tokens. ``draw`` returns random bits (``secrets.randbits``).

    With ``events`` the broker publishes events (see ``Events``), in which malformed frames are cut
    at the patterns in ``redacted`` (see ``IWireProtocol``). ``at_tick_end`` runs a call after the
    events of the current reactor tick; by default a delayed call without delay.
    """

    def __init__(
        self,
        clock: IReactorTime,
        wall: WallClock,
        store: IStore,
        limits: BrokerLimits | None = None,
        draw: Callable[[int], int] = secrets.randbits,
        ring: SecretRing | None = None,
        audit: AuditLog | None = None,
        durability: DurabilityRules | None = None,
        events: bool = False,
        at_tick_end: Callable[[Callable[[], None]], object] | None = None,
        redacted: Sequence[bytes] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._wall = wall
        self._limits = limits = limits or BrokerLimits()
        self._audit = audit or AuditLog(wall.system)
        at_tick_end = at_tick_end or partial(clock.callLater, 0)
        self.store = store
        self.counters = Counters()
        self.memory = MemoryBudget(limits.max_memory)
        # So neither the history nor the clients can use up both.
        self.memory.set_aside(limits.history_memory)
        self.slices = Slices(at_tick_end)
        self.topics = TopicRegistry(limits.max_topics, self.memory)
        self.router = Router(self.counters, self.memory, clock.seconds, at_tick_end, self.slices)
        self.cursors = Cursors(clock, store, self.topics, self.router)
        self.tokens = TokenVerifier(ring or SecretRing())
        self.queue_keys = QueueKeys(self.router, self.tokens, self._audit, store)
        self.topic_lifecycle = TopicLifecycle(
            self.topics, store, self.router, self.queue_keys, durability or DurabilityRules()
        )
        self.expiry = self._make_expiry()
        self.sessions = self._make_sessions(draw)
        self.clients = ClientRegistry()
        self.dispatcher = Dispatcher(self.topics, store, self.router, wall.timestamp, draw(60))
        self._at_tick_end = at_tick_end
        self._events = self._make_events(draw, redacted) if events else None
        self._housekeeping = self._make_housekeeping()
        self.listeners: list[Listener] = []
        self._shared: dict[Hashable, Any] = {}
        self._when_open: list[Callable[[], object]] | None = []
        self._parts = self._make_parts()

    # Parts

    def _make_expiry(self) -> Expiry:
        limits = self._limits
        return Expiry(
            self._clock,
            self.slices,
            self.store,
            self.topics,
            self.topic_lifecycle,
            self.queue_keys,
            # A session that is kept names its topics.
            max(limits.topic_expiry, limits.resume_window) if limits.topic_expiry else 0,
            limits.identity_expiry,
        )

    def _make_sessions(self, draw: Callable[[int], int]) -> SessionRegistry:
        return SessionRegistry(
            lambda: draw(64),
            self._clock.seconds,
            self._limits.resume_window,
            self._limits.max_sessions,
            self.memory,
            self.counters.drop,
        )

    def _make_events(self, draw: Callable[[int], int], redacted: Sequence[bytes]) -> Events:
        events = Events(
            self._clock.seconds, self._at_tick_end, self._publish_events, draw, redacted
        )
        self.counters.watcher = events.dropped
        self._audit.watcher = events.audited
        return events

    def _make_housekeeping(self) -> Housekeeping:
        return Housekeeping(
            self._clock,
            self._wall,
            self.router,
            self.sessions,
            self.clients,
            self.slices,
            self._events,
            self.memory,
            self._limits.memory_seconds,
        )

    def _make_parts(self) -> BrokerParts:
        return BrokerParts(
            clock=self._clock,
            wall=self._wall,
            store=self.store,
            memory=self.memory,
            counters=self.counters,
            topics=self.topics,
            router=self.router,
            cursors=self.cursors,
            sessions=self.sessions,
            clients=self.clients,
            dispatcher=self.dispatcher,
            tokens=self.tokens,
            verifications=TokenBucket(VERIFICATIONS, self._clock.seconds),
            queue_keys=self.queue_keys,
            audit=self._audit,
            topic_lifecycle=self.topic_lifecycle,
            slices=self.slices,
            expiry=self.expiry,
            events=self._events,
            services=IServiceCollection(self),
            at_tick_end=self._at_tick_end,
            when_open=self._call_when_open,
            shared=self._get_shared,
        )

    # Listeners

    def make_listener(
        self, protocol: str, settings: Mapping[str, Any], endpoint: str = ""
    ) -> Listener:
        """Return a listener of this broker; see ``add_listener``."""
        return Listener(self._parts, protocol, settings, endpoint)

    def add_listener(self, listener: Listener, service: IService | None = None) -> None:
        """Reconfigure ``listener`` with the broker, start and stop its ``service``."""
        self.listeners.append(listener)
        if service is not None:
            service.setServiceParent(self)

    def _get_shared(self, key: Hashable, make: Callable[[], _Shared]) -> _Shared:
        if key not in self._shared:
            self._shared[key] = make()
        found: _Shared = self._shared[key]
        return found

    def _call_when_open(self, call: Callable[[], object]) -> None:
        if self._when_open is None:
            call()
        else:
            self._when_open.append(call)

    # Reconfiguration

    def reconfigure(
        self, ring: SecretRing, settings: Mapping[tuple[str, str], Mapping[str, Any]]
    ) -> Deferred[tuple[int, int]]:
        """Replace the secrets and the settings of listeners, by protocol and endpoint.

        Every live subscription is rechecked, in slices; fires with how many stay and how many end.
        A listener that ``settings`` does not mention keeps its own.
        """
        before = self.tokens.ring
        self.tokens.replace(ring)
        for listener in self.listeners:
            new = settings.get((listener.protocol, listener.endpoint))
            if new is not None:
                listener.reconfigure(new)
        return self._recheck_all().addCallback(self._record_reload, before, ring)

    def _recheck_all(self) -> Deferred[tuple[int, int]]:
        results: Counter[bool] = Counter()
        work = self.router.recheck_all(self.topics.with_prefix(b""), results)
        return self.slices.finish(work).addCallback(lambda _: (results[True], results[False]))

    def _record_reload(
        self, counts: tuple[int, int], before: SecretRing, ring: SecretRing
    ) -> tuple[int, int]:
        kept, removed = counts
        self._audit.record(
            "reload",
            secrets_added=sorted(secret.id for secret in ring if secret not in before),
            secrets_removed=sorted(secret.id for secret in before if secret not in ring),
            kept=kept,
            removed=removed,
        )
        return counts

    # Start

    def startService(self) -> None:
        """Open the store, start the listeners and the housekeeping; raises StartError."""
        self.store.open(self.dispatcher.run_id)
        self._start_clock()
        if self._events is not None:
            self._create_events_topic()
        if self.store.durable:
            self.topic_lifecycle.restore()
        calls, self._when_open = self._when_open or [], None
        for call in calls:
            call()
        super().startService()  # type: ignore[no-untyped-call]
        log.info("{summary}", summary=self.store.summary)
        self._housekeeping.start()
        self.expiry.start()

    def _start_clock(self) -> None:
        remembered = dict(self.store.items(CLOCK)).get("", b"").decode(errors="replace")
        self._wall.remember = lambda text: self.store.put(CLOCK, "", text.encode())
        self._wall.start(self.store.last_timestamp, remembered)
        # Subscriptions end with their tokens, at a time of the wall clock.
        self._wall.moved = self._recheck_all

    def _create_events_topic(self) -> None:
        """Create the events topic before a client can; raises StartError."""
        try:
            self.topics.create(EVENTS_TOPIC).configured = True
        except Refused as refused:
            raise StartError(f"events: cannot create topic {EVENTS_TOPIC}: {refused}") from None

    def _publish_events(self, payloads: list[bytes]) -> None:
        columns = Columns.of(payloads)
        self.dispatcher.relay(self.topics.named(EVENTS_TOPIC), columns, b"", EVENTS_PROTOCOL)

    # Shutdown

    def stopService(self) -> Deferred[None]:
        """Stop accepting, flush, send goodbyes, close; abort connections at the deadline."""
        self._housekeeping.stop()
        self.expiry.stop()
        stopped: Deferred[None] = maybeDeferred(super().stopService)
        stopped.addCallback(lambda _: self._drain()).addCallback(lambda _: self._close_store())
        return stopped.addCallback(self._log_totals)

    def _drain(self) -> Deferred[None] | None:
        self.router.flush()
        self.sessions.stop()
        drained = self.clients.drain()
        if drained is None:
            return None
        deadline = self._clock.callLater(self._limits.stop_seconds, self.abort_clients)

        def cancel(result: None) -> None:
            if deadline.active():
                deadline.cancel()

        return drained.addCallback(cancel)

    def abort_clients(self) -> None:
        """Close every remaining connection at once; for a broker that is stopping."""
        log.warn("{count} connections did not close in time", count=len(self.clients))
        self.clients.abort("the broker stops")

    def _close_store(self) -> Deferred[None]:
        if self._events is not None:
            self._events.close()
        return self.store.close()

    def _log_totals(self, result: None) -> None:
        counters = self.counters
        self._audit.close()
        log.info(
            "stopped: {published} published, {delivered} delivered, {dropped} dropped, "
            "{refused} refused, {hits} known tokens, {misses} verified, {jumps} clock jumps",
            published=counters.published,
            delivered=counters.delivered,
            dropped=counters.dropped,
            refused=counters.refused,
            hits=self.tokens.hits,
            misses=self.tokens.misses,
            jumps=self._wall.jumps,
        )
