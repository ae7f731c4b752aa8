"""A broker's log as the pipeline reads it, over HTTP or from its file.

Both give Arrow record batches of the columns in ``pubsub.store.arrow``, in the order of offsets,
and say what is missing between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from pubsub.errors import PubSubError
from pubsub.pipeline.offsets import PartitionBounds


class DataLoss(PubSubError):
    """Messages that were to be read are not there any more; names partition and offsets."""

    reason = "data-loss"


class WrongHistory(PubSubError):
    """A position that is not of this log: it was put back to an older state, or is another one."""

    reason = "epoch"


class Unreachable(PubSubError):
    """The log cannot be read just now; trying again may do."""

    reason = "unreachable"


class Rejected(PubSubError):
    """The broker understood and says no, for example as the token does not do."""

    reason = "rejected"


OTHER_HISTORY = (
    "{} is not the history that was read up to offset {}: it is another one, or was restored to an "
    "older state; use a new checkpoint"
)


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """The messages from ``start`` to before ``stop`` cannot be read."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ExpiredBefore:
    """Everything before ``first`` is gone."""

    first: int


BatchOrGap: TypeAlias = "pa.RecordBatch | DamagedRange | ExpiredBefore"


@dataclass(frozen=True, slots=True)
class TopicSize:
    """How much of a topic there is in a range of offsets, to within a block at its ends."""

    name: str
    messages: int
    nbytes: int


class History(Protocol):
    """One partition. Every method may raise Unreachable, Rejected or WrongLog."""

    def bounds(self, timestamp: int | None = None) -> PartitionBounds:
        """Return the bounds of the partition.

        ``offset_at_time`` is the offset of the first message at or after ``timestamp`` (µs since
        the Unix epoch), or ``next`` without a timestamp.
        """

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        """The topics that have messages in a range."""

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[BatchOrGap]:
        """The messages from ``start`` to before ``stop``, of ``topics`` (None: of all).

        If what is asked for begins before the first that is left, Expired comes first. Damage
        comes in its place. ``epoch`` is as in ``check``.
        """

    def check(self, position: int, epoch: str) -> None:
        """Raises WrongLog unless an offset up to which it was read in ``epoch`` is still good."""

    def report_position(self, reader: str, position: int, epoch: str) -> None:
        """Have the broker know how far ``reader`` is."""
