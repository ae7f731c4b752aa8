"""The subscriptions of a client of spot: topics by name, and all whose names have a prefix.

A client with an identity may return on another connection (spot §3.5). The topics that it had then
continue where it stopped receiving them: they are delivered from the history first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.access_rules.access import RESERVED
from pubsub.broker.clients.sessions import TOPIC_BYTES
from pubsub.broker.topic_space.prefix_subscriptions import PrefixSubscriptions
from pubsub.broker.topic_space.topic_names import MAX_NAME, topic_name
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import InvalidTopicName, LimitReached, MemoryExhausted, Refused
from pubsub.protocols.spot.message_heads import MessageEncoding
from pubsub.protocols.spot.prefixes import Prefixes

if TYPE_CHECKING:
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.slices import Work
    from pubsub.protocols.spot.role import RequestingClient


# Estimated bytes of a subscription by name or by prefix, for the memory budget.
SUBSCRIPTION_BYTES = 768


@dataclass(frozen=True, slots=True)
class KeptSubscriptions:
    """The subscriptions of a client that continue at ``end``, the end of the history then.

    ``positions`` has those of topics that the client had not received up to there.
    """

    names: frozenset[str]
    prefixes: Prefixes
    positions: Mapping[Topic, Position]
    end: Position

    @property
    def nbytes(self) -> int:
        """The estimated bytes without ``positions``, for the memory budget."""
        return SUBSCRIPTION_BYTES * (len(self.names) + len(self.prefixes))

    def position(self, topic: Topic) -> Position | None:
        """Return the offset where the client stopped receiving ``topic``; None if it never did."""
        if topic in self.positions:
            return self.positions[topic]
        covered = topic.name in self.names or self.prefixes.cover(topic.name.encode())
        return self.end if covered else None


class Subscriptions:
    """The subscriptions of one client; ``prefix_of`` returns the frames before a topic's payloads.

    A change of one takes as long as there are topics with its prefix, and is made in slices (see
    ``ZmtpConnection.carry_out``).
    """

    def __init__(
        self,
        connection: RequestingClient,
        prefix_readers: PrefixSubscriptions,
        prefix_of: Callable[[bytes], bytes],
    ) -> None:
        self._connection = connection
        self._listener = connection.listener
        self._prefix_readers = prefix_readers
        self._prefix_of = prefix_of
        self._names: set[str] = set()
        self._prefixes = Prefixes()
        self._kept: KeptSubscriptions | None = None
        # Bytes charged to the memory budget.
        self._charged = 0
        self._restoring = False
        self.changed: Callable[[], None] = lambda: None
        """Called after each change of the subscriptions."""

    def __len__(self) -> int:
        return len(self._names) + len(self._prefixes)

    # Sessions

    def restore(self, kept: KeptSubscriptions) -> None:
        """Subscribe to everything that the client had at its last connection."""
        self._kept, self._restoring = kept, True
        self._charge(kept.nbytes + TOPIC_BYTES * len(kept.positions))
        # Nothing is delivered before all topics are known, as they have one order.
        self._connection.open_outbox().hold()
        self._connection.carry_out(self._restore_all(kept))

    def _restore_all(self, kept: KeptSubscriptions) -> Work:
        for name in kept.names:
            self._restore(partial(self.add, name.encode()))
            yield
            if self._connection.closing:
                return
        for prefix in kept.prefixes:
            self._restore(partial(self._begin_prefix, prefix))
            yield
            if prefix in self._prefixes:
                yield from self._join_all(prefix)
            if self._connection.closing:
                return
        self._restoring = False
        self._connection.open_outbox().release()
        self.changed()

    def _restore(self, subscribe: Callable[[], None]) -> None:
        try:
            subscribe()
        except Refused as refused:
            self._connection.refuse(refused.reason)

    @property
    def are_restored(self) -> bool:
        """False while not all of ``restore`` is done: nothing is delivered until then."""
        return not self._restoring

    @property
    def is_empty(self) -> bool:
        """True if there are no subscriptions."""
        return not (self._names or self._prefixes or self._restoring)

    def kept(self) -> KeptSubscriptions | None:
        """Return the present state; None if there are no subscriptions."""
        kept = self._kept if self._restoring else None
        if not (self._names or self._prefixes or kept):
            return None
        if kept is not None:
            # Nothing has been delivered, and no request was handled.
            return kept
        outbox = self._connection.outbox
        unsent = {} if outbox is None else outbox.unsent()
        behind = {topic: at for topic, at in unsent.items() if self._covers(topic)}
        end = self._listener.store.next_offset
        return KeptSubscriptions(frozenset(self._names), self._prefixes, behind, end)

    def end(self) -> KeptSubscriptions | None:
        """End all deliveries; return the state that the client's next connection restores.

        None if there are no subscriptions.
        """
        kept, outbox = self.kept(), self._connection.outbox
        if kept is not None and outbox is not None:
            outbox.shut(None)
        return kept

    def clear(self) -> None:
        """The connection has ended. Its outbox leaves the topics by itself."""
        for prefix in self._prefixes:
            self._prefix_readers.discard(prefix, self)
        self._charge(-self._charged)

    def _changed(self) -> None:
        # Each change is not one of its own while all subscriptions are restored.
        if not self._restoring:
            self.changed()

    def _charge(self, nbytes: int) -> None:
        self._charged += nbytes
        if nbytes > 0:
            self._listener.memory.add(nbytes)
        else:
            self._listener.memory.free(-nbytes)

    # Topics

    def add(self, raw: bytes, hosted: bool = False) -> None:
        """Subscribe to the topic of this name and create it if necessary; raises Refused.

        ``hosted`` is True if the subscriber knows that the topic is hosted here.
        """
        name = topic_name(raw)
        self._connection.access.check_subscribe(name)
        is_new = name not in self._names
        if is_new:
            self._check_limit()
        # Subscribed again even if it is not new: the subscription may have been revoked.
        topic = self._listener.topics.create(name, hosted=False)
        if hosted and not topic.hosted and self._connection.access.may_create(name):
            topic.set_hosted(True)
        self._subscribe(topic, admitted=True)
        # A message that had to be delivered first may have evicted the client.
        if is_new and not self._connection.closing:
            self._names.add(name)
            self._charge(SUBSCRIPTION_BYTES)
            self._changed()

    def discard(self, raw: bytes) -> None:
        """Unsubscribe from the topic of this name, unless a prefix covers it."""
        name = topic_name(raw)
        if name in self._names:
            self._names.discard(name)
            self._charge(-SUBSCRIPTION_BYTES)
            topics = self._listener.topics
            if name in topics:
                self._unsubscribe(topics.named(name))
            self._changed()

    def _check_limit(self) -> None:
        limit: int = self._listener.settings["max-subscriptions"]
        if len(self) >= limit:
            raise LimitReached("subscriptions")
        if self._listener.memory.full:
            raise MemoryExhausted("subscriptions")

    # Prefixes

    def add_prefix(self, prefix: bytes, once: bool = False) -> None:
        """Subscribe to all topics that begin with ``prefix``.

        Subscriptions are counted unless ``once`` is true.
        """
        if prefix not in self._prefixes:
            self._begin_prefix(prefix)
        elif not once:
            self._prefixes.add(prefix)
        # Joined again even if it is not new: subscriptions to topics may have been revoked.
        self._connection.carry_out(self._join_all(prefix))

    def _begin_prefix(self, prefix: bytes) -> None:
        """Subscribe to the topics that will be created with ``prefix``; raises Refused."""
        if len(prefix) > MAX_NAME:
            raise InvalidTopicName(f"a prefix has up to {MAX_NAME} bytes, not {len(prefix)}")
        self._check_limit()
        self._prefixes.add(prefix)
        self._prefix_readers.add(prefix, self)
        self._charge(SUBSCRIPTION_BYTES)
        self._changed()

    def _join_all(self, prefix: bytes) -> Work:
        for topic in self._listener.topics.with_prefix(prefix):
            self.join(topic)
            yield
            if self._connection.closing:
                return

    def discard_prefix(self, prefix: bytes, all_of_it: bool = False) -> None:
        """End one subscription to ``prefix``, or all of them."""
        if self._prefixes.discard(prefix, all_of_it):
            self._prefix_readers.discard(prefix, self)
            self._charge(-SUBSCRIPTION_BYTES)
            if not self._prefixes.cover(prefix):
                self._connection.carry_out(self._leave_all(prefix))
            self._changed()

    def _leave_all(self, prefix: bytes) -> Work:
        """Unsubscribe from the topics with ``prefix`` that no other subscription covers."""
        for topic in self._listener.topics.with_prefix(prefix):
            self._unsubscribe(topic)
            yield
            if self._connection.closing:
                return

    def join(self, topic: Topic, admitted: bool = False) -> None:
        """See ``PrefixReader``."""
        try:
            self._connection.access.check_subscribe(topic.name)
            self._subscribe(topic, admitted)
        except Refused as refused:
            # A subscription to everything does not mean the broker's own topics.
            if not topic.name.startswith(RESERVED):
                self._connection.refuse(refused.reason, topic=topic.name)

    # Delivery

    def _subscribe(self, topic: Topic, admitted: bool) -> None:
        outbox = self._connection.open_outbox()
        position = None if self._kept is None else self._kept.position(topic)
        encoding = self._encoding(topic)
        self._listener.router.subscribe(outbox, topic, encoding, position, admitted=admitted)

    def _encoding(self, topic: Topic) -> MessageEncoding:
        return MessageEncoding(self._prefix_of(topic.name.encode()))

    def _unsubscribe(self, topic: Topic) -> None:
        """Unsubscribe from ``topic`` unless a name or a prefix covers it."""
        if self._covers(topic):
            return
        self._listener.router.unsubscribe(self._connection.open_outbox(), topic)

    def _covers(self, topic: Topic) -> bool:
        """Return whether there is a subscription to ``topic``, by its name or by a prefix."""
        return topic.name in self._names or self._prefixes.cover(topic.name.encode())
