"""A listener: one endpoint with its protocol, access rules and limits."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from pubsub.broker.access import AccessRules
from pubsub.broker.handshakes import Handshakes
from pubsub.broker.limits import CONNECTION_BYTES, ConnectionQuota, Rate, RateLimiter
from pubsub.broker.outbox import Outbox
from pubsub.broker.publisher import Publisher
from pubsub.broker.slow_policy import AUTO, DISCONNECT, DROP, PAUSE, SlowPolicy
from pubsub.settings import COUNT, PATTERNS, SECONDS, SIZE, Setting, choice

if TYPE_CHECKING:
    from pubsub.broker.events import ConnectionEvents
    from pubsub.broker.parts import BrokerParts
    from pubsub.broker.publisher import PublishingConnection
    from pubsub.broker.topics import Subscriber, Topic
    from pubsub.interfaces import Consumer

SETTINGS: tuple[Setting, ...] = (
    Setting("allow-publish", PATTERNS, "*", "topics that clients may publish to"),
    Setting("allow-subscribe", PATTERNS, "*", "topics that clients may read"),
    Setting("grant", PATTERNS, "", "topics with a queue key that are open on this listener"),
    Setting("max-connections", COUNT, 0, "connections of a listener; 0: no limit"),
    Setting("max-connections-per-address", COUNT, 0, "connections from one address; 0: no limit"),
    Setting("rate-messages", COUNT, 0, "messages/s a connection may publish; 0: no limit"),
    Setting("rate-bytes", SIZE, 0, "bytes/s of messages a connection may publish; 0: no limit"),
    Setting("listener-rate-messages", COUNT, 0, "messages/s of all connections of a listener"),
    Setting("listener-rate-bytes", SIZE, 0, "bytes/s of messages of all connections of a listener"),
    Setting(
        "slow-consumer",
        choice(AUTO, PAUSE, DROP, DISCONNECT),
        AUTO,
        "policy for slow subscribers: let them continue from the history, hold their publishers, "
        "drop messages for them, or disconnect them",
    ),
    Setting("slow-bytes", SIZE, "64M", "bytes that may be queued for a slow subscriber"),
    Setting("slow-seconds", SECONDS, 30, "seconds a subscriber may be slow before its policy acts"),
    Setting("catch-up-seconds", SECONDS, 0, "seconds a subscriber may be behind; 0: no limit"),
    Setting("idle-timeout", SECONDS, 0, "seconds without input before disconnection; 0: never"),
    Setting(
        "frame-seconds",
        SECONDS,
        20,
        "seconds for a frame to arrive, and one more for each 64 KiB of it; 0: no limit",
    ),
    Setting("handshake-seconds", SECONDS, 10, "seconds for a handshake; 0: no limit"),
)
"""The settings that every listener has, whatever its protocol."""


class Listener:
    """One listener, as its protocol and its connections use it.

    ``settings`` has the values of SETTINGS and of the protocol's own settings by name. ``endpoint``
    distinguishes the listeners of one protocol. ``event_protocol`` is the protocol's name in
    events, by default the same as in the settings.

    A protocol needs ``topics``, ``router``, ``access``, ``publisher`` and ``outbox``; the other
    parts of the broker (see ``BrokerParts``) are there for protocols with sessions, tokens or
    metadata of their own.
    """

    def __init__(
        self,
        parts: BrokerParts,
        protocol: str,
        settings: Mapping[str, Any],
        endpoint: str = "",
    ) -> None:
        self.protocol = protocol
        self.event_protocol = protocol
        self.endpoint = endpoint
        self.settings = settings

        self.clock = parts.clock
        self.wall = parts.wall
        self.store = parts.store
        self.memory = parts.memory
        self.counters = parts.counters
        self.topics = parts.topics
        self.router = parts.router
        self.cursors = parts.cursors
        self.sessions = parts.sessions
        self.clients = parts.clients
        self.dispatcher = parts.dispatcher
        self.tokens = parts.tokens
        self.verifications = parts.verifications
        self.queue_keys = parts.queue_keys
        self.topic_lifecycle = parts.topic_lifecycle
        self.audit = parts.audit
        self.slices = parts.slices
        self.expiry = parts.expiry
        self.events = parts.events
        self.services = parts.services
        self.at_tick_end = parts.at_tick_end
        self.when_open = parts.when_open
        self.shared = parts.shared

        self._checks_keys = False
        self.access = self._make_access()
        self.quota = ConnectionQuota(
            settings["max-connections"], settings["max-connections-per-address"]
        )
        self._common_rate = Rate()
        self.limiter: RateLimiter | None = None
        self._set_rates()
        self.slow = SlowPolicy(
            settings["slow-consumer"],
            settings["slow-bytes"],
            settings["slow-seconds"],
            settings["catch-up-seconds"],
        )
        self.idle_timeout: float = settings["idle-timeout"]
        self.frame_seconds: float = settings["frame-seconds"]
        self.handshakes = Handshakes(self.clock, settings["handshake-seconds"])
        self._session_kinds: dict[Hashable, Hashable] = {}

    # Rules

    def check_keys_itself(self) -> None:
        """The protocol checks queue keys itself: the rules do not close topics that have one."""
        self._checks_keys = True
        self.access = self._make_access()

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply new settings: access rules at once, rates to connections from now on."""
        self.settings = settings
        self.access = self._make_access()
        self._set_rates()

    def _set_rates(self) -> None:
        settings = self.settings
        self._rate = Rate(settings["rate-messages"], settings["rate-bytes"])
        common = Rate(settings["listener-rate-messages"], settings["listener-rate-bytes"])
        if common != self._common_rate:
            # Shared by all connections from now on.
            self._common_rate = common
            self.limiter = common.limiter(self.clock.seconds)

    def _make_access(self) -> AccessRules:
        return AccessRules(
            self.settings["allow-publish"],
            self.settings["allow-subscribe"],
            self.settings["grant"],
            () if self._checks_keys else self.queue_keys.names,
            () if self._checks_keys else self.queue_keys.exclusive,
        )

    # Connections

    def admit(self, address: str) -> None:
        """Count a new connection; raises LimitReached or MemoryExhausted."""
        self.memory.reserve(CONNECTION_BYTES)
        try:
            self.quota.admit(address)
        except Exception:
            self.memory.free(CONNECTION_BYTES)
            raise
        self.counters.connections += 1

    def leave(self, address: str) -> None:
        """Remove an admitted connection from the counts."""
        self.quota.leave(address)
        self.memory.free(CONNECTION_BYTES)
        self.counters.connections -= 1

    def limiters(self) -> tuple[RateLimiter, ...]:
        """Return the rate limits of a new connection: its own, and that of the listener."""
        limiters = (self._rate.limiter(self.clock.seconds), self.limiter)
        return tuple(limiter for limiter in limiters if limiter is not None)

    def publisher(self, connection: PublishingConnection | None, sender: bytes) -> Publisher:
        """Return the publishing side of a connection; None for one that cannot be held."""
        publisher = Publisher(self, self.dispatcher, self.limiters(), connection, sender)
        if connection is not None:
            connection.publisher = publisher
        return publisher

    def outbox(self, consumer: Consumer, subscriber: Subscriber, forwards: bool = False) -> Outbox:
        """Return the receiving side of a connection; ``forwards`` for one to a topic's host."""
        policy = self.slow.for_forwarding if forwards else self.slow
        return Outbox(self.cursors, consumer, policy, subscriber)

    def session_kind(self, role: Hashable) -> Hashable:
        """Return the ``kind`` of the sessions of clients in this role: one object for all."""
        return self._session_kinds.setdefault(role, (self, role))

    def may_continue(self, client: str, topic: Topic) -> bool:
        """Return whether ``client`` may still read ``topic``; count a refusal if not."""
        if self.access.may_subscribe(topic.name):
            return True
        self.refuse("revoked", client)
        return False

    # Counters and events

    def connection_events(self, client: str) -> ConnectionEvents | None:
        """Report a new connection, if events are on; the result reports its further events."""
        return None if self.events is None else self.events.connected(self, client)

    def refuse(
        self,
        reason: str,
        client: str,
        count: int = 1,
        *,
        topic: str | None = None,
        connection_events: ConnectionEvents | None = None,
        frame: bytes | None = None,
    ) -> None:
        """Count requests of ``client`` that were answered with an error.

        ``topic`` is the topic of the requests, if known. ``frame`` is given for a malformed frame;
        it is empty where the frame may contain a token or a key.
        """
        self.counters.refuse(self.protocol, reason, client, count)
        events = self.events
        if events is not None:
            session = None if connection_events is None else connection_events.session
            if frame is None:
                events.refused(self, client, reason, count, topic, session)
            else:
                events.malformed(self, client, reason, frame, session)

    def evicted(
        self, reason: str, client: str, connection_events: ConnectionEvents | None = None
    ) -> None:
        """Report that ``client`` is disconnected to protect the others."""
        if self.events is not None:
            session = None if connection_events is None else connection_events.session
            self.events.add("evicted", self, client, reason=reason, session=session)
