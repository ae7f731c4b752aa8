"""The position of a query: for each partition, the next offset to read and its epoch.

    {"0": {"next": 1234, "epoch": "3-9f6c01d2"}, "1": {"next": 0, "epoch": "1-00c0ffee"}}

A partition is the history of one broker, numbered as in option url. The epoch shows whether a
history was restored to an older state, or is another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pubsub.errors import ConfigurationError
from pubsub.pipeline.connector_options import EARLIEST, LATEST, Start


@dataclass(frozen=True, slots=True)
class Position:
    """A position in one partition."""

    next: int
    epoch: str


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """The offsets of one partition, from ``first`` to before ``next``.

    ``offset_at_time`` is the offset of the first message at or after the requested time.
    """

    first: int
    next: int
    epoch: str
    offset_at_time: int


Offsets: TypeAlias = dict[int, Position]


def to_json(offsets: Offsets) -> dict[str, dict[str, int | str]]:
    """Return the offsets as Spark stores them in its checkpoint."""
    return {
        str(partition): {"next": position.next, "epoch": position.epoch}
        for partition, position in sorted(offsets.items())
    }


def from_json(value: Mapping[str, Mapping[str, int | str]], partitions: int) -> Offsets:
    """Return the offsets that ``to_json`` converted.

    Raises ConfigurationError if they are of another number of partitions.
    """
    if set(value) != {str(number) for number in range(partitions)}:
        raise ConfigurationError(
            f"the checkpoint is of {len(value)} brokers, but option url names {partitions}; "
            "use a new checkpoint to add or remove brokers"
        )
    return {
        int(partition): Position(int(entry["next"]), str(entry["epoch"]))
        for partition, entry in value.items()
    }


def resolve_offsets(start: Start, bounds: Sequence[PartitionBounds], default: str) -> Offsets:
    """Return the offsets of ``start``; partitions that it does not name are at ``default``.

    Raises ConfigurationError for a partition that does not exist and an offset beyond the end.
    """
    wanted = start if isinstance(start, Mapping) else dict.fromkeys(range(len(bounds)), start)
    check_partitions(wanted, len(bounds))
    return {
        number: Position(_resolve_offset(number, wanted.get(number, default), each), each.epoch)
        for number, each in enumerate(bounds)
    }


def check_partitions(named: Iterable[int], partitions: int) -> None:
    """Raise ConfigurationError if one of the partitions does not exist."""
    for number in named:
        if not 0 <= number < partitions:
            raise ConfigurationError(
                f"partition {number} does not exist; the numbers are 0 to {partitions - 1}"
            )


def _resolve_offset(number: int, offset: int | str, bounds: PartitionBounds) -> int:
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
