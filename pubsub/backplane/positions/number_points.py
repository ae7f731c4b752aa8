"""``NumberPoints``: some offsets of a log with their shared positions, for other brokers. Sans-IO.

They are dense at the end of the log, and sparse before. A client of nsd knows an offset of the log
of its broker. After the end of that broker others find with these points where the client
continues: at the same message, or at an earlier one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pubsub.backplane.positions.shared_position import SharedPosition

# Points that are kept, and those of them that are the newest.
_KEPT, _NEWEST = 40, 16


class NumberPoint(NamedTuple):
    """The messages before ``offset`` of some log are those before ``position``."""

    offset: int
    position: SharedPosition


class NumberPoints:
    """The points of one log."""

    def __init__(self) -> None:
        self.points: list[NumberPoint] = []

    def restore(self, points: Iterable[NumberPoint], end: int) -> None:
        """Take the points before ``end`` that were known before, besides those that are here."""
        known = {one.offset: one for one in (*points, *self.points) if one.offset <= end}
        self.points = [known[offset] for offset in sorted(known)]
        self._thin()

    def add(self, point: NumberPoint) -> None:
        """Add a point behind all others."""
        if not self.points or point.offset > self.points[-1].offset:
            self.points.append(point)
            self._thin()

    def _thin(self) -> None:
        """Remove points, so that the gaps grow with the distance from the end."""
        while len(self.points) > _KEPT:
            offsets = [one.offset for one in self.points]
            end = offsets[-1]
            least = min(
                range(1, len(offsets) - _NEWEST),
                key=lambda at: (offsets[at + 1] - offsets[at - 1]) / (end - offsets[at]),
            )
            del self.points[least]


def position_at(points: Sequence[NumberPoint], offset: int) -> SharedPosition | None:
    """Return the position at ``offset`` of the log with these points, or an earlier one.

    None if the first point is behind it.
    """
    place = bisect_right([one.offset for one in points], offset) - 1
    if place < 0:
        return None
    if place + 1 == len(points) or points[place].offset == offset:
        return points[place].position
    return _between(points[place], points[place + 1], offset)


def _between(low: NumberPoint, high: NumberPoint, offset: int) -> SharedPosition:
    """Return a position before ``offset``: all messages before it are certainly before that.

    If only one broker has published between the points, it is exact.
    """
    before = {run: number for runs in low.position.origins.values() for run, number in runs.items()}
    after = {run: number for runs in high.position.origins.values() for run, number in runs.items()}
    total = high.offset - low.offset
    counts = {run: number - before.get(run, number) for run, number in after.items()}
    if before.keys() != after.keys() or sum(counts.values()) != total:
        # A run has begun, or it has numbered messages that are not in the log.
        return low.position
    passed = offset - low.offset
    origins = {
        origin: {run: before[run] + max(passed - total + counts[run], 0) for run in runs}
        for origin, runs in low.position.origins.items()
    }
    return SharedPosition(low.position.stream, origins)
