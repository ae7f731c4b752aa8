"""What a client of spot has subscribed to: topics by name, and all whose names have a prefix.

A client with an identity may come back on another connection (spot §3.5). Then topics that it had
go on where it left them: they are delivered from the history first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.access import RESERVED
from pubsub.broker.catch_up import CatchUp, shut_and_get_offsets
from pubsub.broker.topic_registry import TopicRegistry
from pubsub.broker.topics import Topic, topic_name
from pubsub.errors import LimitReached, Refused
from pubsub.protocols.spot.scan import StemEncoding

if TYPE_CHECKING:
    from pubsub.protocols.spot.connection import ZmtpConnection

# From this number of topics on, looking through all of them is enough for a turn.
_MANY = 1000


class Patterns:
    """Who reads every topic that has a prefix; one a broker, so that new topics find readers.

    A new topic costs a look-up for each byte of its name, however many readers there are.
    """

    def __init__(self, topics: TopicRegistry) -> None:
        self._readers: dict[bytes, dict[Subscriptions, None]] = {}
        topics.watch(self._made)

    def add(self, prefix: bytes, reader: Subscriptions) -> None:
        """``reader`` is told of topics to come."""
        self._readers.setdefault(prefix, {})[reader] = None

    def discard(self, prefix: bytes, reader: Subscriptions) -> None:
        """``reader`` is told no more."""
        readers = self._readers.get(prefix, {})
        readers.pop(reader, None)
        if not readers:
            self._readers.pop(prefix, None)

    def _made(self, topic: Topic) -> None:
        if not self._readers:
            return
        name = topic.name.encode()
        for end in range(len(name) + 1):
            for reader in tuple(self._readers.get(name[:end], ())):
                reader.join(topic)


@dataclass(frozen=True, slots=True)
class Left:
    """What a client was subscribed to when its connection ended, with the log ending at ``end``."""

    names: frozenset[str]
    prefixes: tuple[bytes, ...]
    positions: Mapping[Topic, int]
    end: int

    def position(self, topic: Topic) -> int | None:
        """Where the client stopped receiving ``topic``; None if it did not receive it."""
        if topic in self.positions:
            return self.positions[topic]
        # One that was made since.
        name = topic.name.encode()
        covered = topic.name in self.names or name.startswith(self.prefixes)
        return self.end if covered else None


class Subscriptions:
    """Those of one connection, each topic in the form that ``stem`` gives it.

    ``left`` is what the client had on the connection before this.
    """

    def __init__(
        self,
        link: ZmtpConnection,
        patterns: Patterns,
        stem: Callable[[bytes], bytes],
        left: Left | None = None,
    ) -> None:
        self._link = link
        self._patterns = patterns
        self._stem = stem
        self._names: set[str] = set()
        self._prefixes: Counter[bytes] = Counter()
        self._left = left
        self._missed: dict[Topic, int] = {}
        self._catching_up: CatchUp | None = None

    def restore(self, left: Left) -> None:
        """Subscribe to everything that the client had before."""
        for name in left.names:
            self._restore(partial(self.add, name.encode()))
        for prefix in left.prefixes:
            self._restore(partial(self.add_prefix, prefix))

    def _restore(self, subscribe: Callable[[], None]) -> None:
        try:
            subscribe()
        except Refused as refused:
            self._link.refuse(refused.reason)

    def leave(self) -> Left | None:
        """The connection has ended, and the client may come back; None if it had nothing."""
        if not (self._names or self._prefixes):
            return None
        outbox = self._link.outbox
        replayed = {} if self._catching_up is None else self._catching_up.positions
        end: int = self._link.listener.store.next_offset
        if outbox is None:
            positions = {}
        else:
            positions = shut_and_get_offsets(outbox, {**replayed, **self._missed}, end)
        return Left(frozenset(self._names), tuple(self._prefixes), positions, end)

    def add(self, raw: bytes, hosted: bool = False) -> None:
        """Subscribe to the topic of this name, which is made if need be; raises Refused.

        ``hosted`` says that the subscriber knows it to be hosted here.
        """
        name = topic_name(raw)
        listener = self._link.listener
        listener.access.check_subscribe(name)
        if name not in self._names:
            self._check_room()
        # Subscribed again even if it is not new: the subscription may have been revoked.
        topic = listener.topics.create(name, hosted=False)
        topic.hosted = topic.hosted or hosted
        self._subscribe(topic)
        self._names.add(name)

    def discard(self, raw: bytes) -> None:
        """Unsubscribe from the topic of this name, unless a prefix covers it still."""
        name = topic_name(raw)
        if name in self._names:
            self._names.discard(name)
            self._prune()

    def add_prefix(self, prefix: bytes) -> None:
        """Subscribe to all topics that begin with ``prefix``, once more if it is not new."""
        if prefix not in self._prefixes:
            self._check_room()
            self._patterns.add(prefix, self)
            topics = tuple(self._link.listener.topics)
            for topic in topics:
                if topic.name.encode().startswith(prefix):
                    self.join(topic)
            if len(topics) > _MANY:
                self._link.rest()
        self._prefixes[prefix] += 1

    def discard_prefix(self, prefix: bytes, all_of_it: bool = False) -> None:
        """End one subscription to ``prefix``, or every one."""
        if prefix not in self._prefixes:
            return
        self._prefixes[prefix] -= 1
        if all_of_it or not self._prefixes[prefix]:
            del self._prefixes[prefix]
            self._patterns.discard(prefix, self)
            self._prune()

    def has_prefix(self, prefix: bytes) -> bool:
        """Is there a subscription to just this prefix?"""
        return prefix in self._prefixes

    def join(self, topic: Topic) -> None:
        """A topic that a prefix covers: subscribe, if its clients may read it here."""
        try:
            self._link.listener.access.check_subscribe(topic.name)
        except Refused as refused:
            # Who asks for everything does not ask for the broker's own topics.
            if not topic.name.startswith(RESERVED):
                self._link.refuse(refused.reason, topic=topic.name)
        else:
            self._subscribe(topic)

    def clear(self) -> None:
        """The connection has ended; its outbox leaves the topics by itself."""
        for prefix in self._prefixes:
            self._patterns.discard(prefix, self)
        self._prefixes.clear()

    def _subscribe(self, topic: Topic) -> None:
        outbox = self._link.open_outbox()
        position = None if self._left is None else self._left.position(topic)
        if topic in outbox.subscriptions or self._is_missed(topic):
            return
        if position is None:
            self._link.listener.router.subscribe(outbox, topic, self._encoding(topic))
            return
        if not self._missed:
            # When all subscriptions of this read are known.
            self._link.listener.at_tick_end(self._catch_up)
        self._missed[topic] = position

    def _is_missed(self, topic: Topic) -> bool:
        return topic in self._missed or (
            self._catching_up is not None and topic in self._catching_up.positions
        )

    def _encoding(self, topic: Topic) -> StemEncoding:
        return StemEncoding(self._stem(topic.name.encode()))

    def _catch_up(self) -> None:
        """Deliver what was missed, one CatchUp after the other."""
        outbox = self._link.outbox
        if self._catching_up is not None or not self._missed or outbox is None or outbox.closed:
            return
        missed, self._missed = self._missed, {}
        encodings = {topic: self._encoding(topic) for topic in missed}
        self._catching_up = self._link.listener.catch_up(outbox, missed, encodings)
        self._catching_up.start().addCallback(self._caught_up)

    def _caught_up(self, result: None) -> None:
        self._catching_up = None
        self._catch_up()

    def _prune(self) -> None:
        """Leave the topics that nothing covers any more."""
        outbox = self._link.open_outbox()
        prefixes = tuple(self._prefixes)
        for topic in tuple(outbox.subscriptions):
            if not self._covers(topic, prefixes):
                self._link.listener.router.unsubscribe(outbox, topic)
        for topic in [topic for topic in self._missed if not self._covers(topic, prefixes)]:
            del self._missed[topic]
        if self._catching_up is not None:
            for topic in tuple(self._catching_up.positions):
                if not self._covers(topic, prefixes):
                    self._catching_up.discard(topic)

    def _covers(self, topic: Topic, prefixes: tuple[bytes, ...]) -> bool:
        return topic.name in self._names or topic.name.encode().startswith(prefixes)

    def _check_room(self) -> None:
        limit: int = self._link.listener.settings["max-subscriptions"]
        if len(self._names) + len(self._prefixes) >= limit:
            raise LimitReached("subscriptions")
