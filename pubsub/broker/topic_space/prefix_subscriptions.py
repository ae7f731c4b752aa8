"""Subscriptions to all topics whose names have a prefix, which new topics find here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topics import Topic


class PrefixReader(Protocol):
    """The subscriptions of one client."""

    def join(self, topic: Topic, admitted: bool = False) -> None:
        """Subscribe to a topic that a prefix covers, if the client may read it.

        A new topic is ``admitted``: it was checked itself whether there is memory for it.
        """


class PrefixSubscriptions:
    """The subscriptions to prefixes, of all connections of a broker: new topics find them here.

    A new topic costs one look-up for each byte of its name, for any number of subscriptions.
    """

    def __init__(self, topics: TopicRegistry, router: Router) -> None:
        self._readers: dict[bytes, dict[PrefixReader, None]] = {}
        self._router = router
        topics.watch(self._topic_created)

    @classmethod
    def of(cls, listener: Listener) -> PrefixSubscriptions:
        """Return those of the broker of ``listener``."""
        return listener.shared(
            "prefix-subscriptions", lambda: cls(listener.topics, listener.router)
        )

    def add(self, prefix: bytes, reader: PrefixReader) -> None:
        """Notify ``reader`` of new topics with this prefix."""
        if prefix not in self._readers:
            self._router.read_prefix(prefix)
        self._readers.setdefault(prefix, {})[reader] = None

    def discard(self, prefix: bytes, reader: PrefixReader) -> None:
        """Stop notifying ``reader``."""
        readers = self._readers.get(prefix, {})
        readers.pop(reader, None)
        if not readers and self._readers.pop(prefix, None) is not None:
            self._router.leave_prefix(prefix)

    def _topic_created(self, topic: Topic) -> None:
        if not self._readers:
            return
        for prefix in prefixes_of(topic.name):
            for reader in tuple(self._readers.get(prefix, ())):
                reader.join(topic, admitted=True)


def prefixes_of(name: str) -> Iterator[bytes]:
    """Yield all prefixes of a topic's name, the shortest first."""
    raw = name.encode()
    return (raw[:end] for end in range(len(raw) + 1))
