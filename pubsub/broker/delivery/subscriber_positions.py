"""The positions of a subscriber that is behind: where each of its topics continues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pubsub.broker.delivery.start_positions import Resumption

if TYPE_CHECKING:
    from pubsub.broker.delivery.start_positions import DeliveredElsewhere, Position
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import Topic


class TopicPosition:
    """The position of one topic, and the messages that its subscriber has not been given.

    ``start`` is the offset of the first message to deliver. ``pending`` counts messages that were
    not delivered live, less those delivered from the history. From the time on at which ``topic``
    had counted ``passed`` messages, the topic counts the former itself. ``taken`` are messages that
    are not delivered; None if there are none.
    """

    __slots__ = ("passed", "pending", "start", "taken", "topic")

    def __init__(self, topic: Topic, start: int, taken: DeliveredElsewhere | None = None) -> None:
        self.topic = topic
        self.taken = taken
        self.start = start
        self.pending = 0
        self.passed: int | None = None

    def untaken(self) -> int:
        """Return how many messages the subscriber has not been given."""
        return self.pending + (0 if self.passed is None else self.topic.passed - self.passed)


class SubscriberPositions:
    """The positions of all topics of a subscriber.

    The history is read from ``offset`` on. Topics without a position of their own start there, as
    it was in the beginning.
    """

    __slots__ = ("_others", "_rewound", "_topics", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = self._others = offset
        self._topics: dict[Topic, TopicPosition] = {}
        # Topics that start before the next page.
        self._rewound: dict[Topic, int] = {}

    def offset_of(self, topic: Topic) -> int:
        """Return the offset of the first message of ``topic`` that was not delivered."""
        rewound = self._rewound.get(topic)
        if rewound is not None:
            return rewound
        position = self._topics.get(topic)
        return max(self._others if position is None else position.start, self.offset)

    def position_of(self, topic: Topic) -> Position:
        """Return where ``topic`` continues, at this broker or at another."""
        offset, taken = self.offset_of(topic), self.taken_of(topic)
        return offset if taken is None else Resumption(offset, taken)

    def taken_of(self, topic: Topic) -> DeliveredElsewhere | None:
        """Return the messages of ``topic`` that are not delivered."""
        position = self._topics.get(topic)
        return None if position is None else position.taken

    @property
    def is_settled(self) -> bool:
        """True if all messages that will arrive are to be delivered."""
        return all(one.taken is None or one.taken.is_settled for one in self._topics.values())

    def of(self, topic: Topic) -> TopicPosition:
        """Return the position of ``topic``."""
        position = self._topics.get(topic)
        if position is None:
            position = self._topics[topic] = TopicPosition(topic, self._others)
        return position

    def add(self, topic: Topic, start: Position, while_reading: bool) -> TopicPosition:
        """Let ``topic`` continue at ``start``; a page that is being read does not have it."""
        offset, taken = start, None
        if isinstance(start, Resumption):
            offset, taken = start.offset, start.taken
        assert isinstance(offset, int)
        position = self._topics[topic] = TopicPosition(topic, offset, taken)
        self._rewound.pop(topic, None)
        if while_reading or offset < self.offset:
            self._rewound[topic] = offset
        return position

    def is_whole(self, topic: Topic, batch: Batch) -> bool:
        """Return whether all messages of ``batch`` are certainly to be delivered."""
        return self.offset_of(topic) <= batch.offset and self.taken_of(topic) is None

    def left(self, topic: Topic, batch: Batch) -> Batch | None:
        """Return the messages of ``batch`` to deliver, which count as given, or None."""
        start = self.offset_of(topic)
        if start > batch.offset:
            batch = batch.slice(start - batch.offset, batch.count)
        position = self.of(topic)
        position.pending -= batch.count
        if position.taken is None:
            return batch
        known = position.taken.prefix(batch.run, batch.sequence, batch.count)
        return batch.slice(known, batch.count) if known < batch.count else None

    def discard(self, topic: Topic) -> None:
        """Remove ``topic``."""
        self._topics.pop(topic, None)
        self._rewound.pop(topic, None)

    @property
    def needs_rewind(self) -> bool:
        """True if a topic starts before ``offset``."""
        return bool(self._rewound)

    def is_rewound(self, topic: Topic) -> bool:
        """Return whether the page that was read last has nothing of ``topic`` to deliver."""
        return topic in self._rewound

    def rewind(self) -> None:
        """Go back to the first of the topics that start before ``offset``."""
        for position in self._topics.values():
            position.start = max(position.start, self.offset)
        self._others = max(self._others, self.offset)
        for topic, offset in self._rewound.items():
            self._topics[topic].start = offset
            self.offset = min(self.offset, offset)
        self._rewound.clear()

    def untaken(self) -> Iterator[tuple[Topic, int]]:
        """Yield how many messages of each topic were not delivered, if there are any."""
        for topic, position in self._topics.items():
            untaken = position.untaken()
            if untaken > 0:
                yield topic, untaken
