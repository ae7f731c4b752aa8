"""A listener: one endpoint with its protocol, access rules and limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from pubsub.broker.access_rules.listener_access import ListenerAccess
from pubsub.broker.audit_log.refused_attempts import REASONS
from pubsub.broker.clients.connection_marks import log_fields, mark_text
from pubsub.broker.clients.handshake_rates import HandshakeRates
from pubsub.broker.clients.handshakes import Handshakes
from pubsub.broker.credentials.anonymous_policy import OFF, admits_anonymous, is_exposed
from pubsub.broker.credentials.identity import NOBODY, Identity
from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import SlowPolicy
from pubsub.broker.listeners.limits import CONNECTION_BYTES, ConnectionQuota
from pubsub.broker.listeners.listener_rates import ListenerRates
from pubsub.broker.listeners.tls_settings import TLS
from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.publishing.rate_limits import RateLimiter
from pubsub.errors import AuthenticationRequired

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.access_rules.access_table import AccessTable
    from pubsub.broker.broker_objects import BrokerObjects
    from pubsub.broker.clients.connection_marks import Marked
    from pubsub.broker.figures.events import ConnectionEvents
    from pubsub.broker.figures.traffic import Traffic
    from pubsub.broker.publishing.publisher import PublishingConnection
    from pubsub.broker.topic_space.topics import Subscriber, Topic
    from pubsub.interfaces import Consumer

_SSL = re.compile(r"(haproxy:)?ssl:")


class Listener:
    """One listener, as its protocol and its connections use it.

    ``settings`` has the values of SETTINGS (see ``listener_settings.py``) and of the protocol's own
    settings by name, and the contents of the files of TLS (see ``tls_settings.py``). ``endpoint``
    distinguishes the listeners of one protocol. ``event_protocol`` is the protocol's name in
    events, figures and the log, by default the same as in the settings.

    A protocol needs ``topics``, ``router``, ``publisher`` and ``outbox``, and the ``access`` of its
    connections; the other objects (see ``BrokerObjects``) are there for protocols with
    sessions, tokens or metadata of their own. ``access`` here is that of a client of which nothing
    is known, not even its address.
    """

    def __init__(
        self,
        objects: BrokerObjects,
        protocol: str,
        settings: Mapping[str, Any],
        endpoint: str = "",
    ) -> None:
        self.protocol = protocol
        self.event_protocol = protocol
        self.endpoint = endpoint
        self.settings = settings
        self._take(objects)

        self._authenticates: Callable[[Mapping[str, Any]], bool] = lambda settings: False
        self._access = ListenerAccess(
            protocol, settings, objects.access_table, self._grants_anonymous
        )
        self._access.close(self.queue_keys.names, self.queue_keys.exclusive)
        self.access = self.access_for(NOBODY)
        self.quota = ConnectionQuota(
            settings["max-connections"], settings["max-connections-per-address"]
        )
        self._rates = ListenerRates(settings, self.clock.seconds)
        self.logs_connections = False
        """Whether the log has lines for connections that begin and end."""
        self._handshake_rates = objects.shared(
            HandshakeRates, lambda: HandshakeRates(objects.clock.seconds)
        )
        self.handshakes = Handshakes(self.clock, settings["handshake-seconds"])
        self._set_times()
        self._session_kinds: dict[Hashable, Hashable] = {}
        self._when_added: list[Callable[[], object]] | None = []

    def _take(self, objects: BrokerObjects) -> None:
        """Make the objects of the broker attributes of this listener."""
        self.clock = objects.clock
        self.wall = objects.wall
        self.store = objects.store
        self.memory = objects.memory
        self.counters = objects.counters
        self.topics = objects.topics
        self.router = objects.router
        self.cursors = objects.cursors
        self.sessions = objects.sessions
        self.clients = objects.clients
        self.dispatcher = objects.dispatcher
        self.tokens = objects.tokens
        self.passwords = objects.passwords
        self.verifications = objects.verifications
        self.queue_keys = objects.queue_keys
        self.topic_lifecycle = objects.topic_lifecycle
        self.audit = objects.audit
        self.attempts = objects.attempts
        self.slices = objects.slices
        self.frame_turns = objects.frame_turns
        self.unused_names = objects.unused_names
        self.events = objects.events
        self.marks = objects.marks
        self.statistics = objects.statistics
        self.drainage = objects.drainage
        self.readiness = objects.readiness
        self.configuration = objects.configuration
        self.services = objects.services
        self.at_tick_end = objects.at_tick_end
        self.when_open = objects.when_open
        self.shared = objects.shared

    @property
    def tls(self) -> bool:
        """Whether new connections are served over TLS."""
        return self.settings.get(TLS) is not None or bool(_SSL.match(self.endpoint))

    def when_added(self, call: Callable[[], object]) -> None:
        """Call ``call`` once the broker has this listener; not all that are made are added."""
        if self._when_added is None:
            call()
        else:
            self._when_added.append(call)

    def added(self) -> None:
        """The broker has this listener from now on."""
        calls, self._when_added = self._when_added or [], None
        for call in calls:
            call()

    # Rules

    def check_keys_itself(self) -> None:
        """The protocol checks queue keys itself: the rules do not close topics that have one."""
        self._access.close((), ())
        self.access = self.access_for(NOBODY)

    def reconfigure(self, settings: Mapping[str, Any], table: AccessTable | None = None) -> None:
        """Apply new settings: ``pubsub/server/reload_effects.py`` says from when on each counts.

        ``table`` are the access rules of the broker, unless they stay.
        """
        self.settings = settings
        self._access.replace(settings, table)
        self._rates.reconfigure(settings)
        self._set_times()
        self.quota.reconfigure(settings["max-connections"], settings["max-connections-per-address"])
        self.handshakes.reconfigure(settings["handshake-seconds"])

    def _set_times(self) -> None:
        settings = self.settings
        self.slow = SlowPolicy(
            settings["slow-consumer"],
            settings["slow-bytes"],
            settings["slow-seconds"],
            settings["catch-up-seconds"],
        )
        self.idle_timeout: float = settings["idle-timeout"]
        self.frame_seconds: float = settings["frame-seconds"]

    def authenticates_requests(
        self, when: Callable[[Mapping[str, Any]], bool] = lambda settings: True
    ) -> None:
        """The protocol has every client prove its identity: no client is anonymous.

        That applies with settings for which ``when`` is true.
        """
        self._authenticates = when

    @property
    def _is_anonymous_possible(self) -> bool:
        return not self._authenticates(self.settings)

    @property
    def serves_anonymous(self) -> bool:
        """Whether there are addresses at which anonymous clients are served."""
        return self._is_anonymous_possible and self.settings["allow-anonymous"] != OFF

    def admits_anonymous(self, host: str) -> bool:
        """Return whether anonymous clients at the address ``host`` may do anything here."""
        return not self._is_anonymous_possible or admits_anonymous(self.settings, host)

    def _grants_anonymous(self, host: str) -> bool:
        """Return whether the rules hold for an anonymous client at the address ``host``.

        Where every client has to prove its identity, one that connected before that was required
        has no rights.
        """
        return self._is_anonymous_possible and admits_anonymous(self.settings, host)

    def check_identity(self, identity: Identity) -> None:
        """Raise AuthenticationRequired for an anonymous client that is not served."""
        if identity.is_anonymous and not self.admits_anonymous(identity.host):
            raise AuthenticationRequired("anonymous clients are not served; present a token")

    def is_exposed(self, host: str) -> bool:
        """Return whether listening at ``host`` would admit anonymous clients of other machines,
        and nothing says that it should.
        """
        return self._is_anonymous_possible and is_exposed(self.settings, host)

    def access_for(self, identity: Identity) -> AccessRules:
        """Return the access of a client with ``identity`` to this listener.

        The result follows changes of the rules for as long as it is kept.
        """
        return self._access.rules_for(identity)

    @property
    def has_access_table(self) -> bool:
        """True if rules are configured: then actions that they do not allow are denied."""
        return self._access.has_table

    @property
    def access_version(self) -> object:
        """Equal to its earlier value unless rules or queue keys have changed since."""
        return self._access.version, self.queue_keys.version

    # Connections

    def admit(self, address: str, spared: bool = False) -> None:
        """Count a new connection, ``spared`` or not; raises LimitReached or MemoryExhausted."""
        count = self.memory.add if spared or self.quota.spares_next else self.memory.reserve
        count(CONNECTION_BYTES)
        try:
            self.quota.admit(address, spared)
        except Exception:
            self.memory.free(CONNECTION_BYTES)
            raise
        self.counters.connections += 1

    def admit_handshake(self, address: str) -> bool:
        """Return whether the client at ``address`` may do a handshake of TLS or CURVE now."""
        return self._handshake_rates.admit(address, self.settings["handshake-rate"])

    def leave(self, address: str) -> None:
        """Remove an admitted connection from the counts."""
        self.quota.leave(address)
        self.memory.free(CONNECTION_BYTES)
        self.counters.connections -= 1
        self.counters.ended_connections += 1

    @property
    def limiter(self) -> RateLimiter | None:
        """The rate limit that all connections share, if there is one."""
        return self._rates.common

    def limiters(self) -> tuple[RateLimiter, ...]:
        """Return the rate limits of a new connection: its own, and that of the listener."""
        return self._rates.limiters()

    def publisher(self, connection: PublishingConnection | None, sender: bytes) -> Publisher:
        """Return the publishing side of a connection; None for one that cannot be held.

        Such a publisher, of a sender of datagrams, has the rights of a client of which nothing is
        known until its ``access`` is set.
        """
        publisher = Publisher(self, self.dispatcher, self.limiters(), connection, sender)
        if connection is not None:
            connection.publisher = publisher
        return publisher

    def outbox(self, consumer: Consumer, subscriber: Subscriber, forwards: bool = False) -> Outbox:
        """Return the receiving side of a connection; ``forwards`` for one to a topic's host."""
        policy = self.slow.for_forwarding if forwards else self.slow
        return Outbox(self.cursors, consumer, policy, subscriber, self.traffic)

    @property
    def traffic(self) -> Traffic:
        """The totals of the listeners of this protocol."""
        return self.counters.traffic[self.event_protocol]

    @property
    def session_count(self) -> int:
        """Sessions of this listener, of connections or kept for their clients."""
        numbers = self.sessions.numbers
        return sum(numbers[kind] for kind in self._session_kinds.values())

    def session_kind(self, role: Hashable) -> Hashable:
        """Return the ``kind`` of the sessions of clients in this role: one object for all."""
        return self._session_kinds.setdefault(role, (self, role))

    def may_continue(
        self,
        client: str,
        topic: Topic,
        connection: Marked | None = None,
        access: AccessRules | None = None,
    ) -> bool:
        """Return whether ``client`` may still read ``topic``; count a refusal if not."""
        if (access or self.access).may_subscribe(topic.name):
            return True
        self.refuse("revoked", client, connection=connection)
        return False

    # Counters and events

    def connection_events(self, client: str, mark: int) -> ConnectionEvents | None:
        """Report a new connection, if events are on; the result reports its end."""
        return None if self.events is None else self.events.connected(self, client, mark)

    def refuse(
        self,
        reason: str,
        client: str,
        count: int = 1,
        *,
        topic: str | None = None,
        connection: Marked | None = None,
        frame: bytes | None = None,
    ) -> None:
        """Count requests of ``client`` that were answered with an error.

        ``topic`` is the topic of the requests, if known. ``connection`` is that of the client, if
        it has one. ``frame`` is given for a malformed frame;
        it is empty where the frame may contain a token or a key.
        """
        timestamp = int(self.wall.system() * 1e6)
        self.counters.refuse(self.event_protocol, reason, client, count, connection, timestamp)
        # The sender of a datagram may have written the address of another client.
        if reason in REASONS and getattr(connection, "proves_address", True):
            peer = log_fields(connection).get("peer", client)
            self.attempts.refused(self.event_protocol, reason, peer, count)
        events = self.events
        if events is not None:
            session = None if connection is None else mark_text(connection.mark)
            if frame is None:
                events.refused(self, client, reason, count, topic, session)
            else:
                events.malformed(self, client, reason, frame, session)

    def drop(
        self, client: str, topic: str, reason: str, count: int, connection: Marked | None = None
    ) -> None:
        """Count ``count`` messages on ``topic`` that ``client`` does not get."""
        self.counters.drop(client, topic, reason, count, connection, self.traffic)

    def evicted(self, reason: str, client: str, connection: Marked | None = None) -> None:
        """Report that ``client`` is disconnected to protect the others."""
        self.counters.evict(reason)
        if self.events is not None:
            session = None if connection is None else mark_text(connection.mark)
            self.events.add("evicted", self, client, reason=reason, session=session)
