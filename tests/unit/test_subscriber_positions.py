"""Where the topics of a subscriber that is behind continue, and what it is given."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.start_positions import Position, Resumption
from pubsub.broker.delivery.subscriber_positions import SubscriberPositions
from pubsub.broker.routing.batch import Batch
from pubsub.broker.topic_space.topics import Topic
from pubsub.kernel import Columns


class GivenBefore:
    """The messages before a sequence."""

    is_settled = False

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence

    def prefix(self, run: int, sequence: int, count: int) -> int:
        return min(max(self._sequence - sequence, 0), count)


def batch_at(offset: int, count: int = 4) -> Batch:
    """Return messages whose sequences are larger than their offsets by 100."""
    payloads = [b"%d" % number for number in range(offset, offset + count)]
    return Batch(("a",), Columns.of(payloads), 0, offset + 100, b"", "spot", offset=offset)


class PositionTests(SynchronousTestCase):
    """Messages that were given before, here or at another broker"""

    def left(self, start: Position, offset: int) -> list[bytes] | None:
        topic, positions = Topic("a"), SubscriberPositions(0)
        positions.add(topic, start, while_reading=False)
        found = positions.left(topic, batch_at(offset))
        # Messages that were given elsewhere do not wait any more, either.
        assert positions.of(topic).pending == -min(offset + 4 - 10, 4)
        return None if found is None else found.columns.payloads()

    def test_messages_before_the_start(self) -> None:
        assert self.left(10, 8) == [b"10", b"11"]
        assert self.left(10, 10) == [b"10", b"11", b"12", b"13"]

    def test_messages_that_were_given_elsewhere(self) -> None:
        for given, expected in ((100, 10), (110, 10), (112, 12), (113, 13)):
            found = [b"%d" % number for number in range(expected, 14)]
            assert self.left(Resumption(10, GivenBefore(given)), 10) == found
        for given in (114, 200):
            assert self.left(Resumption(10, GivenBefore(given)), 10) is None
            assert self.left(Resumption(10, GivenBefore(given)), 9) is None

    def test_another_topic_that_begins_before(self) -> None:
        first, second = Topic("a"), Topic("b")
        positions = SubscriberPositions(5)
        positions.add(first, 7, while_reading=False)
        positions.offset = 20
        positions.add(second, 3, while_reading=False)
        assert positions.needs_rewind
        positions.rewind()
        assert not positions.needs_rewind
        # The history is read from there on, and nothing is given twice.
        assert positions.offset == 3
        assert [positions.offset_of(topic) for topic in (first, second)] == [20, 3]
        assert positions.offset_of(Topic("c")) == 20
