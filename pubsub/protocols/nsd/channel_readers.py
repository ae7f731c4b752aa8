"""``ChannelReaders``: subscriptions of identities, as readers of the topics of their channels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pubsub.errors import Refused

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topics import Topic


class ChannelReaders:
    """Reads the channels of identities that the broker did not have just before.

    An identity keeps a channel whose topic is refused, as a limit may be lower than where it was
    subscribed. It reads the topic from the time on at which there is one.
    """

    def __init__(self, topics: TopicRegistry, router: Router) -> None:
        self._topics, self._router = topics, router
        # The readers of channels that have no topic.
        self._waiting: Counter[str] = Counter()
        topics.watch(self._read_waiting)

    def read(self, channel: str) -> Refused | None:
        """Count a reader of ``channel``; return the reason why it has no topic."""
        try:
            topic = self._topics.create(channel, hosted=False)
        except Refused as refused:
            self._waiting[channel] += 1
            return refused
        self._router.read_history(topic)
        return None

    def _read_waiting(self, topic: Topic) -> None:
        for _ in range(self._waiting.pop(topic.name, 0)):
            self._router.read_history(topic)

    def leave(self, channel: str) -> None:
        """End one ``read``, or the reading of a subscription to a topic that is here."""
        topic = self._topics.get(channel)
        if topic is not None:
            self._router.leave_history(topic)
        elif self._waiting[channel] > 1:
            self._waiting[channel] -= 1
        else:
            del self._waiting[channel]


def channel_readers(listener: Listener) -> ChannelReaders:
    """Return those of the broker of ``listener``."""
    return listener.shared(ChannelReaders, lambda: ChannelReaders(listener.topics, listener.router))
