"""Selects the topics and offsets that a query reads, and divides them into tasks."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from pubsub.pipeline.batch_limits import Amount, estimate_amount
from pubsub.pipeline.connector_options import SourceOptions
from pubsub.pipeline.history import History

_RESERVED = "$SYS/"


@dataclass(frozen=True)
class Task(InputPartition):
    """The offsets from ``start`` to before ``stop`` of a partition in ``epoch``."""

    partition: int
    start: int
    stop: int
    epoch: str
    topics: frozenset[str] | None


class Subscription:
    """The topics that a query reads."""

    def __init__(self, options: SourceOptions) -> None:
        self._topics = options.topics
        self._pattern = None if options.pattern is None else re.compile(options.pattern)

    @property
    def selective(self) -> bool:
        """True if some topics are not read."""
        return self._topics is not None or self._pattern is not None

    def covers(self, name: str) -> bool:
        """Return whether the topic is read. A pattern does not cover reserved topics."""
        if self._topics is not None:
            return name in self._topics
        if name.startswith(_RESERVED):
            return False
        return self._pattern is None or self._pattern.fullmatch(name) is not None

    def topics(self, history: History, start: int, stop: int) -> frozenset[str] | None:
        """Return the names to request in a range, or None for all topics.

        The names that match a pattern differ between ranges.
        """
        if self._pattern is None:
            return self._topics
        return frozenset(
            topic.name for topic in history.topics(start, stop) if self.covers(topic.name)
        )

    def amount(self, history: History, start: int, stop: int) -> Amount:
        """Estimate the rows and bytes to read in a range."""
        found = [topic for topic in history.topics(start, stop) if self.covers(topic.name)]
        return estimate_amount(found, stop - start)


def plan_tasks(
    history: History, whole: Task, subscription: Subscription, rows_per_task: int
) -> list[Task]:
    """Divide ``whole`` into almost equal ranges of about ``rows_per_task`` rows.

    Returns no tasks if there is nothing to read.
    """
    width = whole.stop - whole.start
    if width <= 0 or (whole.topics is not None and not whole.topics):
        return []
    rows = width
    if subscription.selective and width > rows_per_task:
        rows = subscription.amount(history, whole.start, whole.stop).rows
    count = max(1, -(-rows // rows_per_task))
    cuts = [whole.start + width * number // count for number in range(count + 1)]
    if count > 1:
        good = history.cuts(whole.start, whole.stop)
        cuts[1:-1] = [_nearest(good, cut, width // count // 4) for cut in cuts[1:-1]]
    return [
        Task(whole.partition, start, stop, whole.epoch, whole.topics)
        for start, stop in pairwise(cuts)
        if start < stop
    ]


def _nearest(good: Sequence[int], cut: int, most: int) -> int:
    """Return the one of ``good`` that is nearest to ``cut``; ``cut`` if none is within ``most``."""
    at = bisect_left(good, cut)
    near = [one for one in good[max(at - 1, 0) : at + 1] if abs(one - cut) <= most]
    return min(near, key=lambda one: abs(one - cut), default=cut)
