"""The figures of the broker as messages on ``$SYS/stats``, once a second while they have a reader.

They are never stored. As the other topics of the broker, this one is closed to clients that are not
granted it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pubsub.broker.figures.events import PROTOCOL
from pubsub.broker.topic_space.durability import STATS
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.figures.statistics import Statistics
    from pubsub.broker.routing.dispatcher import Dispatcher
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topics import Topic

TOPIC = STATS


class StatsTopic:
    """Publishes the figures of ``statistics``."""

    def __init__(
        self, topics: TopicRegistry, dispatcher: Dispatcher, statistics: Statistics
    ) -> None:
        self._topics = topics
        self._dispatcher = dispatcher
        self._statistics = statistics
        self._topic: Topic | None = None

    def start(self) -> None:
        """Create the topic before a client can."""
        # It is not recorded in the history, as it exists without that.
        self._topic = self._topics.create_own(TOPIC)
        self._statistics.each_second.append(self._publish)

    def _publish(self) -> None:
        topic = self._topic
        if topic is None or not topic.groups:
            return
        data = json.dumps(self._statistics.snapshot(), separators=(",", ":")).encode()
        self._dispatcher.relay_unstored(topic, Columns.of([data]), b"", PROTOCOL)
