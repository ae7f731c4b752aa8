"""The subscriptions of a WebSocket to all topics whose names have a prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pubsub.broker.topic_space.prefix_subscriptions import PrefixSubscriptions, prefixes_of
from pubsub.http_api.reading.live_response import TOPIC_BYTES

if TYPE_CHECKING:
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.routing.encoders import RowEncoding
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic


class WebSocketPrefixes:
    """Subscribes ``outbox`` to those topics with the prefixes that ``may_follow`` allows.

    A topic that the client has subscribed to by its name, as ``is_named`` tells, is left alone.
    """

    def __init__(
        self,
        listener: Listener,
        outbox: Outbox,
        may_follow: Callable[[str], bool],
        is_named: Callable[[str], bool],
    ) -> None:
        self._listener = listener
        self._outbox = outbox
        self._may_follow = may_follow
        self._is_named = is_named
        self._readers = PrefixSubscriptions.of(listener)
        self._encodings: dict[bytes, RowEncoding] = {}

    def __len__(self) -> int:
        return len(self._encodings)

    def __contains__(self, prefix: bytes) -> bool:
        return prefix in self._encodings

    async def add(self, prefix: bytes, encoding: RowEncoding) -> None:
        """Subscribe. Topics that are created from now on are included. Raises MemoryExhausted."""
        slices = self._listener.slices
        self._listener.memory.reserve(TOPIC_BYTES)
        self._encodings[prefix] = encoding
        self._readers.add(prefix, self)
        try:
            await slices.finish(self._join_all(prefix))
        except BaseException:
            await slices.finish(self.discard(prefix))
            raise

    def _join_all(self, prefix: bytes) -> Work:
        for topic in self._listener.topics.with_prefix(prefix):
            if self._outbox.closed:
                return
            self.join(topic)
            yield

    def join(self, topic: Topic, admitted: bool = False) -> None:
        """See ``PrefixReader``."""
        encoding = self._encoding(topic.name)
        if encoding is None or self._is_named(topic.name) or not self._may_follow(topic.name):
            return
        self._listener.router.subscribe(self._outbox, topic, encoding, admitted=admitted)

    def discard(self, prefix: bytes) -> Work:
        """End a subscription, and those to the topics that no other one covers."""
        if self._encodings.pop(prefix, None) is None:
            return
        self._readers.discard(prefix, self)
        self._listener.memory.free(TOPIC_BYTES)
        for topic in self._listener.topics.with_prefix(prefix):
            if self._outbox.closed:
                return
            if not (self._is_named(topic.name) or self.cover(topic.name)):
                self._listener.router.unsubscribe(self._outbox, topic)
            yield

    def recheck(self) -> Work:
        """The rights have changed: leave topics, and join others."""
        for prefix in tuple(self._encodings):
            for topic in self._listener.topics.with_prefix(prefix):
                for _ in self._listener.router.recheck_each(topic):
                    yield
                if self._outbox.closed:
                    return
                self.join(topic, admitted=True)

    def cover(self, name: str) -> bool:
        """Return whether a prefix begins the name of a topic."""
        return self._encoding(name) is not None

    def may_continue(self, name: str) -> bool:
        """Return whether a prefix covers the topic, and the client may still read it."""
        return self.cover(name) and self._may_follow(name)

    def _encoding(self, name: str) -> RowEncoding | None:
        if not self._encodings:
            return None
        found = (self._encodings.get(prefix) for prefix in prefixes_of(name))
        return next((one for one in found if one is not None), None)

    def end(self) -> None:
        """The connection has ended."""
        for prefix in self._encodings:
            self._readers.discard(prefix, self)
        self._listener.memory.free(TOPIC_BYTES * len(self._encodings))
        self._encodings.clear()
