"""Regions of a history: the topics, partitions, offsets and times that a condition can select."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_


@dataclass(frozen=True, slots=True)
class Interval:
    """The whole numbers from ``low`` to before ``stop``; infinity is no bound."""

    low: float = -math.inf
    stop: float = math.inf

    def __and__(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.stop, other.stop))

    def __or__(self, other: Interval) -> Interval:
        """Return the smallest interval with both."""
        if self.empty or other.empty:
            return other if self.empty else self
        return Interval(min(self.low, other.low), max(self.stop, other.stop))

    @property
    def empty(self) -> bool:
        """Return whether no number is in it."""
        return self.low >= self.stop

    def widened(self, by: int) -> Interval:
        """Return the interval with ``by`` more on both sides."""
        return Interval(self.low - by, self.stop + by)


@dataclass(frozen=True, slots=True)
class Region:
    """Messages of ``topics`` (None: all) within the intervals; ``times`` are µs since 1970.

    The intersection of regions is exact.
    """

    topics: frozenset[str] | None = None
    partitions: Interval = Interval()
    offsets: Interval = Interval()
    times: Interval = Interval()

    def __and__(self, other: Region) -> Region:
        topics = self.topics
        if other.topics is not None:
            topics = other.topics if topics is None else topics & other.topics
        return Region(
            topics,
            self.partitions & other.partitions,
            self.offsets & other.offsets,
            self.times & other.times,
        )


EVERYTHING = Region()


def union(regions: Iterable[Region]) -> Region:
    """Return the smallest region that has all of ``regions``, at least one."""
    found = list(regions)
    topics = [region.topics for region in found if region.topics is not None]
    return Region(
        frozenset().union(*topics) if len(topics) == len(found) else None,
        reduce(or_, [region.partitions for region in found]),
        reduce(or_, [region.offsets for region in found]),
        reduce(or_, [region.times for region in found]),
    )
