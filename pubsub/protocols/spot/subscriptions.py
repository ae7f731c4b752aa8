"""What a client of spot has subscribed to: topics by name, and all whose names have a prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from pubsub.broker.access import RESERVED
from pubsub.broker.topics import Topic, TopicRegistry, topic_name
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


class Subscriptions:
    """Those of one connection, each topic in the form that ``stem`` gives it."""

    def __init__(
        self, link: ZmtpConnection, patterns: Patterns, stem: Callable[[bytes], bytes]
    ) -> None:
        self._link = link
        self._patterns = patterns
        self._stem = stem
        self._names: set[str] = set()
        self._prefixes: Counter[bytes] = Counter()

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
        topic = listener.broker.topics.create(name, hosted=False)
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
            topics = tuple(self._link.listener.broker.topics)
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
        encoding = StemEncoding(self._stem(topic.name.encode()))
        self._link.listener.broker.router.subscribe(self._link.open_outbox(), topic, encoding)

    def _prune(self) -> None:
        """Leave the topics that nothing covers any more."""
        outbox = self._link.open_outbox()
        prefixes = tuple(self._prefixes)
        for topic in tuple(outbox.subscriptions):
            if topic.name not in self._names and not topic.name.encode().startswith(prefixes):
                self._link.listener.broker.router.unsubscribe(outbox, topic)

    def _check_room(self) -> None:
        limit: int = self._link.listener.settings["max-subscriptions"]
        if len(self._names) + len(self._prefixes) >= limit:
            raise LimitReached("subscriptions")
