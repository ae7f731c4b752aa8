"""Interest: the topics that are read here, as the hosts of topics and other brokers learn them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.routing.message_router import MessageRouter
    from pubsub.broker.topic_space.topics import Topic


class TopicInterest:
    """Notifies the host of a topic, or other brokers, of its first reader and its last one's end.

    A topic is read by its subscribers and by readers that have no outbox.
    """

    def __init__(self, router: MessageRouter) -> None:
        self._router = router

    def read_history(self, topic: Topic) -> None:
        """Count a reader without an outbox, which reads ``topic`` from the history."""
        topic.history_readers += 1
        self.reader_came(topic)

    def leave_history(self, topic: Topic) -> None:
        """End one ``read_history``."""
        topic.history_readers = max(topic.history_readers - 1, 0)
        self.reader_left(topic)

    def reader_came(self, topic: Topic) -> None:
        """A reader of ``topic`` has come."""
        if topic.upstream is not None:
            topic.upstream.want(topic)
        elif self._router.forwarding is not None:
            self._router.forwarding.wanted(topic)

    def reader_left(self, topic: Topic) -> None:
        """A reader of ``topic`` has left, perhaps the last one."""
        if topic.has_readers:
            return
        if topic.upstream is not None:
            topic.upstream.unwant(topic)
        elif self._router.forwarding is not None:
            self._router.forwarding.unwanted(topic)

    def read_prefix(self, prefix: bytes) -> None:
        """A client begins to read every topic with ``prefix``, and no other does so yet."""
        if self._router.forwarding is not None:
            self._router.forwarding.prefix_wanted(prefix)

    def leave_prefix(self, prefix: bytes) -> None:
        """End one ``read_prefix``."""
        if self._router.forwarding is not None:
            self._router.forwarding.prefix_unwanted(prefix)
