"""``BrokerService``: composes the objects of the broker (see ``core.py``), starts and stops them.

It is the parent of the listeners' services, so Twisted starts and stops them with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.application.service import IService, IServiceCollection, MultiService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pubsub.broker.access_rules.access_table import AccessTable
from pubsub.broker.audit_log.audit import AuditLog
from pubsub.broker.audit_log.refused_attempts import RefusedAttempts
from pubsub.broker.broker_objects import BrokerObjects, KeptObjects
from pubsub.broker.clients.connection_marks import make_marks
from pubsub.broker.core import BrokerCore, DispatcherMaker
from pubsub.broker.credentials.issuer_key_refresh import Fetch
from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.credentials.passwords import PasswordVerifier, call_at_once
from pubsub.broker.credentials.verification_throttle import verification_bucket
from pubsub.broker.delivery.drainage import Drainage, report_failure
from pubsub.broker.figures.events import Events
from pubsub.broker.figures.events_topic import EventsTopic
from pubsub.broker.figures.stats_topic import StatsTopic
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.listeners.listener import Listener
from pubsub.broker.listeners.served_listeners import ServedListeners
from pubsub.broker.readiness import Readiness
from pubsub.broker.reconfiguration import Reconfiguration, durability_applier
from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.broker.shown_configuration import ShownConfiguration
from pubsub.broker.topic_space.durability import DurabilityRules
from pubsub.broker.wall_clock import WallClock

if TYPE_CHECKING:
    from pubsub.interfaces import IStore

log = Logger()


class BrokerService(MultiService):
    """The broker. ``clock`` is the reactor, whose time must be monotonic; ``wall`` is the time of
    messages and tokens. ``draw`` returns random bits (``secrets.randbits``).

    With ``events`` the broker publishes events (see ``Events``), in which malformed frames are cut
    at the patterns in ``redacted`` (see ``IWireProtocol``). ``at_tick_end`` runs a call after the
    events of the current reactor tick; by default a delayed call without delay. ``passwords`` has
    the users; by default there are none. ``access`` has the access rules of all listeners.
    ``fetch_keys`` fetches the public keys of an issuer of tokens (see ``IssuerKeyRefresh``).
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
        passwords: PasswordVerifier | None = None,
        make_dispatcher: DispatcherMaker = Dispatcher,
        access: AccessTable | None = None,
        fetch_keys: Fetch | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        limits = limits or BrokerLimits()
        self._wall = wall
        self._access_table = access or AccessTable()
        self._audit = audit or AuditLog(wall.system)
        self._attempts = RefusedAttempts(self._audit.record, clock)
        self._at_tick_end = at_tick_end or partial(clock.callLater, 0)
        core = self._core = BrokerCore(
            clock,
            wall,
            store,
            limits,
            draw,
            ring or SecretRing(),
            self._audit,
            durability or DurabilityRules(),
            self._at_tick_end,
            PasswordVerifier(clock, call_at_once) if passwords is None else passwords,
            make_dispatcher,
            fetch_keys,
        )
        self._take(core)
        self._events = self._make_events(redacted)
        self.configuration = ShownConfiguration()
        self.served = ServedListeners(self)
        self.listeners = self.served.listeners
        self._make_reports(limits)
        self._when_open: list[Callable[[], object]] | None = []
        self.served.objects = self._make_objects()
        self._events.turn(events)
        self._reconfiguration = self._make_reconfiguration()

    # Composition

    def _take(self, core: BrokerCore) -> None:
        """Make the objects of ``core`` attributes of this broker."""
        self._clock = core.clock
        self._recheck_all = core.recheck_all
        self._housekeeping = core.housekeeping
        self.store = core.store
        self.counters = core.counters
        self.memory = core.memory
        self.slices = core.slices
        self.topics = core.topics
        self.router = core.router
        self.cursors = core.cursors
        self.tokens = core.tokens
        self.issuer_key_refresh = core.issuer_key_refresh
        self.passwords = core.passwords
        self.queue_keys = core.queue_keys
        self.topic_lifecycle = core.topic_lifecycle
        self.unused_names = core.unused_names
        self.sessions = core.sessions
        self.clients = core.clients
        self.dispatcher = core.dispatcher

    def _make_events(self, redacted: Sequence[bytes]) -> EventsTopic:
        return EventsTopic(
            self._clock.seconds,
            self._at_tick_end,
            redacted,
            self.topics,
            self.dispatcher,
            self._watch_events,
        )

    def _make_reports(self, limits: BrokerLimits) -> None:
        """Make the objects that report the state of the broker, and its end."""
        self.statistics = self._core.make_statistics(self.listeners)
        self.statistics.each_second.append(self.dispatcher.settle)
        self._stats_topic = StatsTopic(self.topics, self.dispatcher, self.statistics)
        self.drainage = Drainage(
            self._clock,
            self.router,
            self.clients,
            self.queue_keys,
            limits.stop_seconds,
            self.listeners,
            self.remove_listener,
        )
        self.readiness = Readiness(
            self.store, self.drainage, self.listeners, self.served.service_of
        )

    def _make_reconfiguration(self) -> Reconfiguration:
        return Reconfiguration(
            self._audit,
            self.tokens,
            self.listeners,
            self._recheck_all,
            [
                self.memory.reconfigure,
                self.topics.reconfigure,
                self.sessions.reconfigure,
                self.unused_names.reconfigure,
                self._housekeeping.reconfigure,
                self.store.reconfigure,
                durability_applier(self.topic_lifecycle, self.slices),
                self.drainage.reconfigure,
                self._events.reconfigure,
                self.issuer_key_refresh.reconfigure,
            ],
        )

    def _watch_events(self, events: Events | None) -> None:
        """Report to ``events`` from now on; None ends that."""
        self.counters.watcher = None if events is None else events.dropped
        self._audit.watcher = None if events is None else events.audited
        self._housekeeping.events = events
        self.served.set_events(events)

    def _make_objects(self) -> BrokerObjects:
        return BrokerObjects(
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
            passwords=self.passwords,
            verifications=verification_bucket(self._clock.seconds),
            queue_keys=self.queue_keys,
            audit=self._audit,
            attempts=self._attempts,
            topic_lifecycle=self.topic_lifecycle,
            slices=self.slices,
            frame_turns=self._core.frame_turns,
            unused_names=self.unused_names,
            events=None,
            access_table=self._access_table,
            marks=make_marks(self._wall.timestamp),
            statistics=self.statistics,
            drainage=self.drainage,
            readiness=self.readiness,
            configuration=self.configuration,
            services=IServiceCollection(self),
            at_tick_end=self._at_tick_end,
            when_open=self._call_when_open,
            shared=KeptObjects(),
        )

    # Listeners

    def make_listener(
        self, protocol: str, settings: Mapping[str, Any], endpoint: str = ""
    ) -> Listener:
        """Return a listener of this broker; see ``add_listener``."""
        return self.served.make(protocol, settings, endpoint)

    def add_listener(self, listener: Listener, service: IService | None = None) -> None:
        """Reconfigure ``listener`` with the broker, start and stop its ``service``.

        If the broker runs, the service is started at once; this raises StartError, and the listener
        is then not added.
        """
        self.served.add(listener, service)

    @property
    def draining(self) -> bool:
        """True when the broker stops, or when a request has drained every protocol."""
        return self.drainage.draining

    def remove_listener(self, listener: Listener) -> Deferred[None]:
        """Drain the connections of ``listener``, and accept none; fires when its port is closed.

        Connections that are left at the deadline for a stop are aborted.
        """
        self.drainage.drain_settled(self.clients.of_listener(listener))
        return self.served.forget(listener)

    def _call_when_open(self, call: Callable[[], object]) -> None:
        if self._when_open is None:
            call()
        else:
            self._when_open.append(call)

    # Reconfiguration

    def reconfigure(
        self,
        ring: SecretRing,
        settings: Mapping[tuple[str, str], Mapping[str, Any]],
        whole: Mapping[str, Any] | None = None,
    ) -> Deferred[tuple[int, int]]:
        """Replace the secrets and the settings of listeners, by protocol and endpoint.

        ``whole`` has the settings of the broker, if these are replaced too. Every live subscription
        is rechecked, in slices; fires with how many stay and how many end. A listener that
        ``settings`` does not mention keeps its own. Raises ConfigurationError if the audit log
        cannot be opened; nothing has changed in that case.
        """
        return self._reconfiguration.apply(ring, settings, whole)

    def put_back(
        self,
        ring: SecretRing,
        settings: Mapping[tuple[str, str], Mapping[str, Any]],
        whole: Mapping[str, Any],
    ) -> None:
        """Restore the state before a ``reconfigure`` that has failed."""
        self._reconfiguration.put_back(ring, settings, whole)

    def set_access(self, table: AccessTable) -> None:
        """Replace the access rules of all listeners; ``reconfigure`` rechecks subscriptions."""
        self.served.set_access(table)

    # Start

    def startService(self) -> None:
        """Open the store, start the listeners and the housekeeping; raises StartError."""
        self.store.open(self.dispatcher.run_id)
        self._core.start_clock()
        self._events.start()
        self._stats_topic.start()
        if self.store.durable:
            self.topic_lifecycle.restore()
        calls, self._when_open = self._when_open or [], None
        for call in calls:
            call()
        super().startService()  # type: ignore[no-untyped-call]
        log.info("{summary}", summary=self.store.summary)
        self._housekeeping.start()
        self.statistics.start()
        self.unused_names.start()
        self.issuer_key_refresh.start()
        self.readiness.started = True

    # Shutdown

    def stopService(self) -> Deferred[None]:
        """Stop accepting, flush, send goodbyes, close; abort connections at the deadline."""
        self._housekeeping.stop()
        self.statistics.stop()
        self.unused_names.stop()
        self.issuer_key_refresh.stop()
        self.passwords.stop()
        stopped = self.drainage.leave(self.sessions.sharing, super().stopService)
        stopped.addCallback(lambda _: self._drain_all()).addErrback(report_failure)
        return stopped.addCallback(lambda _: self._close_store()).addCallback(self._log_totals)

    def _drain_all(self) -> Deferred[None] | None:
        self.router.finish()
        self.sessions.stop()
        return self.drainage.drain(self.clients)

    def abort_clients(self) -> None:
        """Close every remaining connection at once; for a broker that is stopping."""
        self.drainage.abort(self.clients)

    def _close_store(self) -> Deferred[None]:
        self._events.close()
        return self.store.close()

    def _log_totals(self, result: None) -> None:
        counters = self.counters
        self._attempts.close()
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
