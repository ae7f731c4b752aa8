"""The offsets at which a query begins, or ends, to read the topics of a partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from pubsub.errors import ConfigurationError
from pubsub.pipeline.histories.history import PartitionBounds
from pubsub.pipeline.options.offset_options import EARLIEST, LATEST, Start, TopicOffsets
from pubsub.pipeline.options.topic_selection import TopicSelection

Covers: TypeAlias = Callable[[str], bool]
Group: TypeAlias = tuple[int, Covers]
"""An offset, and which topics begin there."""


@dataclass(frozen=True, slots=True)
class TopicStarts:
    """The start of the topics of a partition: the option, its default, and the bounds now.

    A time is resolved in the bounds; then ``timed`` is set.
    """

    number: int
    start: Start | None
    default: str
    bounds: PartitionBounds
    timed: bool = False

    @property
    def named(self) -> frozenset[str]:
        """The topics with offsets of their own in this partition."""
        if not isinstance(self.start, TopicOffsets):
            return frozenset()
        return frozenset(name for name, places in self.start.of.items() if self.number in places)

    def of(self, topic: str | None = None) -> int:
        """Return the offset of a topic, or of those without their own."""
        if self.timed:
            return self.bounds.offset_at_time
        return resolve_offset(self.start, self.number, self.bounds, self.default, topic)

    def groups(self, reads: TopicSelection, before: TopicSelection | None = None) -> list[Group]:
        """Return where the topics of ``reads`` that ``before`` does not cover begin."""
        if reads.chosen is not None:
            places: dict[int, set[str]] = defaultdict(set)
            for name in reads.chosen:
                if before is None or not before.covers(name):
                    places[self.of(name)].add(name)
            return [(at, names.__contains__) for at, names in places.items()]
        if before is not None and not before.selective:
            return []
        named = self.named
        found: list[Group] = [
            (self.of(name), frozenset({name}).__contains__)
            for name in named
            if before is None or not before.covers(name)
        ]
        return [*found, (self.of(), partial(_is_other, reads, before, named))]


def _is_other(
    reads: TopicSelection, before: TopicSelection | None, named: frozenset[str], name: str
) -> bool:
    is_new = before is None or not before.covers(name)
    return is_new and name not in named and reads.covers(name)


def resolve_offset(
    start: Start | None,
    number: int,
    bounds: PartitionBounds,
    default: str,
    topic: str | None = None,
) -> int:
    """Return the offset of ``start`` in a partition, for ``topic`` or those it does not name.

    Raises ConfigurationError for an offset beyond the end.
    """
    wanted: int | str = default
    if isinstance(start, TopicOffsets):
        wanted = start.of.get(topic or "", {}).get(number, default)
    elif isinstance(start, Mapping):
        wanted = start.get(number, default)
    elif start is not None:
        wanted = start
    return _offset_in(number, wanted, bounds)


def check_partitions(named: Iterable[int], partitions: int) -> None:
    """Raise ConfigurationError if one of the partitions does not exist."""
    for number in named:
        if not 0 <= number < partitions:
            raise ConfigurationError(
                f"partition {number} does not exist; the numbers are 0 to {partitions - 1}"
            )


def _offset_in(number: int, offset: int | str, bounds: PartitionBounds) -> int:
    if offset == EARLIEST:
        return bounds.first
    if offset == LATEST:
        return bounds.next
    assert isinstance(offset, int)
    if offset > bounds.next:
        raise ConfigurationError(
            f"partition {number}: offset {offset} is beyond the end, which is at {bounds.next}"
        )
    return offset
