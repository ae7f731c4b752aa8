"""Histograms of times, with fixed buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
)  # fmt: skip
"""The upper bounds of the buckets, in seconds. A last bucket has the times above them."""
# Marks that are kept for quantiles of the last minute, and the seconds from one to the next.
_MARKS, _SNAPSHOT_EVERY = 6, 10


class Histogram:
    """The number of times in each bucket; ``total`` is the sum of all times, in seconds."""

    __slots__ = ("_snapshots", "_ticks", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        self._snapshots: deque[Sequence[int]] = deque([tuple(self.counts)], _MARKS)
        self._ticks = 0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add a time, ``count`` times."""
        self.counts[bisect_left(BOUNDS, seconds)] += count
        self.total += seconds * count

    @property
    def count(self) -> int:
        """The number of times."""
        return sum(self.counts)

    def second_passed(self) -> None:
        """A second has passed, for ``quantile``."""
        self._ticks += 1
        if self._ticks % _SNAPSHOT_EVERY == 0:
            self._snapshots.append(tuple(self.counts))

    def quantile(self, part: float) -> float:
        """Return the time that ``part`` of the times of the last minute did not exceed.

        It is interpolated within its bucket, at most the largest bound, and 0 if there was none.
        """
        recent = [now - then for now, then in zip(self.counts, self._snapshots[0], strict=True)]
        wanted = sum(recent) * part
        below = 0
        for index, number in enumerate(recent[:-1]):
            if number and below + number >= wanted:
                lower = BOUNDS[index - 1] if index else 0.0
                return lower + (BOUNDS[index] - lower) * (wanted - below) / number
            below += number
        return BOUNDS[-1] if recent[-1] else 0.0
