"""Ranges without messages of a query's topics, which it passes over without a batch.

Spark stores a position only with a batch, so the position in the checkpoint stays behind. When the
messages there expire, nothing is lost: the range is known to be quiet, to this process and, for
later ones, to the broker, which stores it with the position of the reader. The result holds for
every query with the same topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pubsub.errors import PubSubError
from pubsub.pipeline.histories.history import History, PartitionBounds
from pubsub.pipeline.histories.retry import logger
from pubsub.pipeline.positions.offsets import PartitionPosition
from pubsub.pipeline.positions.topic_positions import Stretch

# Seconds between two reports of a quiet range.
_PAUSE = 10.0


class QuietRanges:
    """The quiet range after the position in each partition.

    ``reader`` is the name under which the broker stores it.
    """

    def __init__(self, reader: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._found: dict[int, tuple[int, int]] = {}
        # The time of the last report to the broker, and its position.
        self._checked: dict[int, tuple[int, float]] = {}

    def until(self, number: int, start: int) -> int:
        """Return the offset before which there is nothing to read from ``start`` on."""
        begin, end = self._found.get(number, (start, start))
        return end if begin == start else start

    def note(
        self,
        history: History,
        number: int,
        position: PartitionPosition,
        end: int,
        bounds: PartitionBounds,
    ) -> bool:
        """Note that the partition is quiet up to ``end``.

        Returns False if the position should be moved by a batch, because later processes would not
        learn that nothing was lost.
        """
        if self.until(number, position.next) < bounds.first:
            # Messages have expired unseen.
            return False
        self._found[number] = (position.next, end)
        if position.next < bounds.first:
            return False
        if self._tell(history, number, position, end, bounds.epoch):
            return True
        # Before the older half of the history can have expired.
        return position.next >= (bounds.first + end) // 2

    def _tell(
        self, history: History, number: int, position: PartitionPosition, end: int, epoch: str
    ) -> bool:
        now = self._clock()
        begin, checked = self._checked.get(number, (-1, 0.0))
        if begin == position.next and now - checked < _PAUSE:
            return True
        assert position.reads is not None
        try:
            stored = history.report_position(
                self._reader, end, epoch, (position.next, position.reads.digest)
            )
        except PubSubError as error:
            logger.warning("partition %d: cannot report the position: %s", number, error)
            return False
        if stored:
            self._checked[number] = (position.next, now)
        return stored

    def known_until(self, history: History, stretch: Stretch, first: int) -> int:
        """Return an offset before which the stretch has no messages; its start if none is known."""
        found = self.until(stretch.partition, stretch.start)
        if found >= first:
            return found
        try:
            answer = history.quiet_until(self._reader, stretch.start, stretch.reads.digest)
        except PubSubError as error:
            logger.warning(
                "partition %d: cannot ask for the position: %s", stretch.partition, error
            )
            return found
        return found if answer is None else max(found, answer)

    def report(self, history: History, number: int, position: PartitionPosition) -> None:
        """Store the position at the broker. Raises PubSubError."""
        self._checked.pop(number, None)
        lowest = min((each.next for each in position.behind), default=position.next)
        history.report_position(self._reader, lowest, position.epoch)
