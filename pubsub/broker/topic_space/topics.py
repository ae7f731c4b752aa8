"""Topics, their subscribers, and the interfaces that mention them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from uuid import UUID, uuid5
from weakref import ReferenceType

from pubsub.broker.compact_map import SingleItemMap
from pubsub.broker.routing.encoders import make_encoder
from pubsub.broker.routing.targets import Targets
from pubsub.broker.topic_space.publishing_state import PublishingState
from pubsub.broker.topic_space.topic_names import TOPIC_NAMESPACE, fnv1a32

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.figures.traffic import Traffic
    from pubsub.broker.routing.batch import Batch
    from pubsub.interfaces import Encoding

# Observers of a topic from which on those that are gone are removed when another comes.
_OBSERVERS = 16


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A topic's queue key was set (``old`` is None) or rotated."""

    old: bytes | None = field(repr=False)
    new: bytes = field(repr=False)


class Upstream(Protocol):
    """The broker that hosts a topic which is not hosted here (see ``Topic.upstream``)."""

    def publish(self, topic: Topic, batch: Batch) -> None:
        """Forward a batch that was published here; raises TopicUnreachable."""

    def when_confirmed(self, topic: Topic, call: Callable[[bool], None]) -> None:
        """Call ``call(True)`` when the host has all messages published so far.

        Of a topic that is SYNC there they are on disk. ``call(False)`` reports that some were not
        published there, or that this is not known. Calls may be made before this returns.
        """

    def update(self, topic: Topic) -> Deferred[bool]:
        """Copy the messages that the host has of ``topic`` into the history here.

        The Deferred fires with False if the messages in the history are going to be replaced by
        copies from the host, which cannot be reached at present. With True they remain.
        """

    def want(self, topic: Topic) -> None:
        """Request the messages of ``topic``; called for each local reader."""

    def unwant(self, topic: Topic) -> None:
        """Stop the messages of ``topic``: its last local reader has gone."""

    def no_longer_hosts(self, topic: Topic) -> bool:
        """Return whether the host is connected, and has listed its topics without ``topic``."""


class DeliverySource(Protocol):
    """The topics that the messages of a delivery belong to; a ``Topic`` if there is one."""

    @property
    def topics(self) -> Iterable[Topic]: ...

    def counts(self, count: int) -> Iterable[tuple[Topic, int]]:
        """Return how many of the ``count`` messages each topic has."""


QueuedDelivery = tuple[int, bytes, int, int, DeliverySource]
"""A number that increases with each delivery, encoded messages, how many they are, the offset of
the first, and their topics."""


class Subscriber(Protocol):
    """The client that an outbox delivers to."""

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""

    def evict(self, reason: str) -> None:
        """Close the connection, because of ``reason``."""

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """Return whether the subscription to ``topic`` may continue.

        Access rules or secrets have changed, or the topic's key if ``change`` is given. Before it
        returns False the client is notified in its protocol's terms.
        """

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """Return whether messages of the history are for this client, which is subscribed.

        ``batch`` has them on ``topic``, and perhaps others.
        """


class SubscriptionObserver(Protocol):
    """An object that depends on the subscriptions of topics."""

    def subscription_changed(self, recipient: Recipient) -> None:
        """A subscription of ``recipient`` to one of the topics has begun or ended."""


class Recipient(Protocol):
    """The target of a subscriber group's deliveries; implemented by ``Outbox``."""

    subscriptions: Mapping[Topic, Encoding]
    """The topics that are delivered live."""
    messages: int
    """Messages that were written to the transport, without those that are not settled."""
    nbytes: int
    """The bytes of these messages as frames."""
    queued: int
    """The bytes that wait for ``flush``."""
    traffic: Traffic
    """The totals of its protocol."""

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""

    @property
    def connection(self) -> object:
        """The client's connection, for log lines (see ``log_fields``)."""

    @property
    def closed(self) -> bool:
        """True if it is shut."""

    def deliver(self, data: bytes, count: int, source: DeliverySource, offset: int) -> None:
        """Queue ``count`` encoded messages until ``flush``; ``offset`` is that of the first."""

    def deliver_now(self, data: bytes, count: int, source: DeliverySource, offset: int) -> None:
        """Do as ``deliver`` and ``flush`` together.

        The messages have been counted as written.
        """

    def flush(self) -> None:
        """Write the queued messages."""

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """Return whether the subscription to ``topic`` may continue after ``change``."""

    def topics(self) -> tuple[Topic, ...]:
        """Return the topics that are subscribed, live or behind."""

    def is_behind(self, topic: Topic) -> bool:
        """Return whether ``topic`` is subscribed and delivered from the history."""

    def starts_behind(self, topic: Topic, encoding: Encoding, start: Position | None) -> bool:
        """Begin a subscription from the history, at ``start``; False if it is to begin live.

        Without ``start`` it is for the next message on, which is live unless the subscriber is
        behind.
        """

    def ended(self, topic: Topic) -> None:
        """The subscription to ``topic``, live or behind, has ended."""

    def overdue(self, now: float) -> bool:
        """Return whether the subscriber has been slow for longer than its policy allows."""

    def give_up_overdue(self) -> None:
        """Free the queue of a subscriber that is overdue, or evict it."""


class SubscriberGroup(Targets["Recipient"]):
    """The subscribers of one topic that share an encoding."""

    __slots__ = ("encoder", "encoding", "only_subscription", "pending")

    def __init__(self, topic: Topic, encoding: Encoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.encoder = make_encoder([encoding])
        # The subscriptions of every recipient that has no other: one object for all of them.
        self.only_subscription = SingleItemMap(topic, encoding)
        self.pending: list[QueuedDelivery] = []


class Topic(PublishingState):
    """A topic: its name and ids, its subscribers grouped by encoding, and its backpressure.

    ``blockers`` are the subscribers that are too slow for it. While there is one, a connection that
    has just published is held and kept in ``waiting``.

    ``upstream`` is set if another broker hosts the topic: messages published here are forwarded
    there and not delivered here, and those that arrive from there are delivered here. ``hosted`` is
    True if this broker hosts the topic. A topic that a listener only offers is neither until it is
    used. ``history_readers`` counts the readers that have no outbox but read the history.
    ``configured`` is True if the configuration names the topic, so that it always exists.
    ``idle_since`` is the time at which it was found to be unused; None if it was used since.

    ``behind`` are the subscribers that read the topic from the history until they have caught up
    (see ``Cursor``). ``passed`` counts the messages that were published while there was one.
    ``messages`` and ``nbytes`` count those that came since the start of the broker and the bytes of
    their payloads; ``last_timestamp`` is the time of the last, in µs.
    """

    __slots__ = (
        "_observers",
        "behind",
        "configured",
        "groups",
        "history_readers",
        "id",
        "idle_since",
        "last_timestamp",
        "name",
        "passed",
        "upstream",
    )

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.id = fnv1a32(name.encode())
        self.groups: dict[Encoding, SubscriberGroup] = {}
        self.upstream: Upstream | None = None
        self.history_readers = 0
        self.configured = False
        self.idle_since: float | None = None
        self.behind: set[Recipient] | None = None
        self.passed = 0
        self.last_timestamp = 0
        self._observers: set[ReferenceType[SubscriptionObserver]] | None = None

    def notify_of_changes(self, observer: ReferenceType[SubscriptionObserver]) -> None:
        """Call ``subscription_changed`` of the observer after each change of a subscription."""
        if self._observers is None:
            # Far cheaper than a WeakSet, and a read may bring messages of many new topics.
            self._observers = set()
        elif len(self._observers) >= _OBSERVERS:
            self._observers = {one for one in self._observers if one() is not None}
        self._observers.add(observer)

    def ignore_changes(self, observer: ReferenceType[SubscriptionObserver]) -> None:
        """End ``notify_of_changes``."""
        if self._observers is not None:
            self._observers.discard(observer)
            if not self._observers:
                self._observers = None

    def subscription_changed(self, recipient: Recipient) -> None:
        """A subscription of ``recipient`` has begun or ended."""
        if self._observers is not None:
            # An observer may end its observation.
            for reference in tuple(self._observers):
                observer = reference()
                if observer is not None:
                    observer.subscription_changed(recipient)

    def count(self, messages: int, nbytes: int, timestamp: int) -> None:
        """Count messages that have come, the last of them at ``timestamp``."""
        self.messages += messages
        self.nbytes += nbytes
        if timestamp > self.last_timestamp:
            self.last_timestamp = timestamp

    @property
    def topics(self) -> tuple[Topic]:
        """See ``DeliverySource``: a topic is that of deliveries of its own."""
        return (self,)

    def counts(self, count: int) -> Iterable[tuple[Topic, int]]:
        """See ``DeliverySource``."""
        return ((self, count),)

    @property
    def has_readers(self) -> bool:
        """True if a client of this broker reads the topic."""
        return bool(self.groups) or self.history_readers > 0 or self.behind is not None

    @property
    def subscribers(self) -> tuple[Recipient, ...]:
        """All subscribers, live or behind."""
        live = [recipient for group in self.groups.values() for recipient in group]
        return (*live, *(self.behind or ()))

    @property
    def subscriber_count(self) -> int:
        """The number of subscribers, live or behind."""
        return sum([len(group) for group in self.groups.values()]) + len(self.behind or ())

    @property
    def in_use(self) -> bool:
        """True if a client or another broker depends on the topic now."""
        return self.upstream is not None or self.has_clients

    @property
    def has_clients(self) -> bool:
        """True if a client depends on the topic now."""
        return self.has_readers or bool(self.blockers or self.waiting)

    @property
    def uuid(self) -> UUID:
        """The topic's id for protocols that use UUIDs: version 5, made from the name."""
        return uuid5(TOPIC_NAMESPACE, self.name)
