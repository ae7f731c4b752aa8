"""A listener as the domain sees it: one protocol's door, with its rules, limits and counters."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from pubsub.broker.access import AccessRules
from pubsub.broker.limits import CONNECTION_BYTES, ConnectionQuota, Rate, RateLimiter
from pubsub.broker.outbox import DISCONNECT, DROP, PAUSE, Outbox, SlowPolicy
from pubsub.broker.publisher import Publisher
from pubsub.settings import COUNT, PATTERNS, SECONDS, SIZE, Setting, choice

if TYPE_CHECKING:
    from pubsub.broker.events import ConnectionEvents
    from pubsub.broker.service import BrokerService
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Consumer, Publishing, Subscriber

SETTINGS: tuple[Setting, ...] = (
    Setting("allow-publish", PATTERNS, "*", "topics that clients may publish to"),
    Setting("allow-subscribe", PATTERNS, "*", "topics that clients may read"),
    Setting("grant", PATTERNS, "", "topics with a queue key that are open here all the same"),
    Setting("max-connections", COUNT, 0, "connections of a listener; 0 is no limit"),
    Setting("max-connections-per-address", COUNT, 0, "the same from one address"),
    Setting("rate-messages", COUNT, 0, "messages/s a connection may publish; 0 is no limit"),
    Setting("rate-bytes", SIZE, 0, "payload bytes/s a connection may publish; 0 is no limit"),
    Setting("listener-rate-messages", COUNT, 0, "messages/s of all connections of a listener"),
    Setting("listener-rate-bytes", SIZE, 0, "payload bytes/s of all connections of a listener"),
    Setting(
        "slow-consumer",
        choice(PAUSE, DROP, DISCONNECT),
        PAUSE,
        "what a subscriber that does not read causes: its publishers wait, messages are "
        "dropped for it, or it is disconnected",
    ),
    Setting("slow-bytes", SIZE, "64M", "how far behind a subscriber may be, in bytes"),
    Setting("slow-seconds", SECONDS, 30, "for how long it may be behind before disconnection"),
    Setting("idle-timeout", SECONDS, 0, "seconds of silence before disconnection; 0 is never"),
)
"""The settings that every listener has, whatever its protocol."""


class Listener:
    """One listener: what its connections may do, and what they have in common.

    ``settings`` holds the values of SETTINGS and of the protocol's own settings by name;
    ``endpoint`` tells the listeners of one protocol apart.
    """

    def __init__(
        self,
        broker: BrokerService,
        protocol: str,
        settings: Mapping[str, Any],
        endpoint: str = "",
    ) -> None:
        self.broker = broker
        self.protocol = protocol
        self.called = protocol
        """What events call the protocol: what messages that come by it say they came by."""
        self.endpoint = endpoint
        self.settings = settings
        self._checks_keys = False
        self.access = self._access()
        self.quota = ConnectionQuota(
            settings["max-connections"], settings["max-connections-per-address"]
        )
        self._common = Rate()
        self.limiter: RateLimiter | None = None
        self._set_rates()
        self.slow = SlowPolicy(
            settings["slow-consumer"], settings["slow-bytes"], settings["slow-seconds"]
        )
        self.idle_timeout: float = settings["idle-timeout"]
        self._kinds: dict[Hashable, Hashable] = {}

    def check_keys_itself(self) -> None:
        """The protocol asks its clients for queue keys: its rules need not close their topics."""
        self._checks_keys = True
        self.access = self._access()

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """New rules and rates: access counts at once, rates for connections to come."""
        self.settings = settings
        self.access = self._access()
        self._set_rates()

    def _set_rates(self) -> None:
        settings = self.settings
        self.rate = Rate(settings["rate-messages"], settings["rate-bytes"])
        common = Rate(settings["listener-rate-messages"], settings["listener-rate-bytes"])
        if common != self._common:
            # Shared by all that come from now on.
            self._common = common
            self.limiter = common.limiter(self.broker.seconds)

    def _access(self) -> AccessRules:
        return AccessRules(
            self.settings["allow-publish"],
            self.settings["allow-subscribe"],
            self.settings["grant"],
            () if self._checks_keys else self.broker.queue_keys.names,
            () if self._checks_keys else self.broker.queue_keys.exclusive,
        )

    def admit(self, address: str) -> None:
        """Count a new connection in; raises LimitReached or MemoryExhausted."""
        self.broker.memory.reserve(CONNECTION_BYTES)
        try:
            self.quota.admit(address)
        except Exception:
            self.broker.memory.free(CONNECTION_BYTES)
            raise
        self.broker.counters.connections += 1

    def leave(self, address: str) -> None:
        """Count an admitted connection out."""
        self.quota.leave(address)
        self.broker.memory.free(CONNECTION_BYTES)
        self.broker.counters.connections -= 1

    def connection_events(self, client: str) -> ConnectionEvents | None:
        """Report a new connection, if events are on; returns what reports its end."""
        events = self.broker.events
        return None if events is None else events.connected(self, client)

    def publisher(self, connection: Publishing | None, sender: bytes) -> Publisher:
        """The publishing side of a connection, one each; None where it cannot be held."""
        publisher = Publisher(self, connection, sender)
        if connection is not None:
            connection.publisher = publisher
        return publisher

    def outbox(self, consumer: Consumer, subscriber: Subscriber) -> Outbox:
        """The receiving side of a connection."""
        return Outbox(self.broker.router, consumer, self.slow, subscriber)

    def kind(self, role: Hashable) -> Hashable:
        """What a session of a client in this ``role`` is resumed as: one object for all."""
        return self._kinds.setdefault(role, (self, role))

    def may_stay(self, client: str, topic: Topic) -> bool:
        """May ``client`` go on reading ``topic``? If not, that is counted."""
        if self.access.may_subscribe(topic.name):
            return True
        self.refuse("revoked", client)
        return False

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

        ``topic`` is what they were about, if that is known. ``frame`` is what was sent, if it is
        none of the protocol; empty where it may hold a token or a key.
        """
        self.broker.counters.refuse(self.protocol, reason, client, count)
        events = self.broker.events
        if events is not None:
            session = None if connection_events is None else connection_events.session
            if frame is None:
                events.refused(self, client, reason, count, topic, session)
            else:
                events.malformed(self, client, reason, frame, session)

    def evicted(
        self, reason: str, client: str, connection_events: ConnectionEvents | None = None
    ) -> None:
        """Tell that ``client`` is disconnected for the sake of the others."""
        events = self.broker.events
        if events is not None:
            session = None if connection_events is None else connection_events.session
            events.tell("evicted", self, client, reason=reason, session=session)
