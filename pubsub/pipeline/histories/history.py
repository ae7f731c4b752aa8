"""A broker's history as the pipeline reads it, over HTTP or from its directory.

Both give Arrow record batches with the columns of ``pubsub.store.reading.arrow``, in the order of
the offsets, and report the gaps between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from pubsub.errors import PubSubError


class DataLoss(PubSubError):
    """Messages that the query should read no longer exist. The text has partition and offsets."""

    reason = "data-loss"


class WrongHistory(PubSubError):
    """A position that does not belong to this history.

    The history was restored to an older state, or it is another one.
    """

    reason = "epoch"


class Unreachable(PubSubError):
    """The history cannot be read now; a retry can succeed."""

    reason = "unreachable"


class HistoryRefused(PubSubError):
    """The broker refused the request, for example because of the token.

    ``elsewhere`` is set if another broker that shares the history can answer it.
    """

    reason = "rejected"
    elsewhere = False


class PartsLost(HistoryRefused):
    """The broker no longer has the parts of a batch; nothing of it was published."""


class ReaderInUse(PubSubError):
    """Another query holds the reader name. ``seconds`` is the time until it ends unless renewed."""

    reason = "reader-in-use"

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


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
    """The messages before ``first`` were removed by retention."""

    first: int


class OtherBroker(PubSubError):
    """Offsets of the broker where a batch is planned have become invalid; plan it again.

    ``error`` is the failure of that broker.
    """

    reason = "unreachable"

    def __init__(self, error: PubSubError) -> None:
        super().__init__(str(error))
        self.error = error


BatchOrGap: TypeAlias = "pa.RecordBatch | DamagedRange | ExpiredBefore"


@dataclass(frozen=True, slots=True)
class TopicSize:
    """The messages and bytes of a topic in a range of offsets, to within a block at its ends."""

    name: str
    messages: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """The offsets of one partition, from ``first`` to before ``next``.

    ``offset_at_time`` is the offset of the first message at or after the requested time.
    """

    first: int
    next: int
    epoch: str
    offset_at_time: int


class History(Protocol):
    """One partition: the history of one broker.

    Every method can raise Unreachable, Rejected or WrongHistory.
    """

    def bounds(self, timestamp: int | None = None) -> PartitionBounds:
        """Return the bounds of the partition.

        ``offset_at_time`` is the offset of the first message at or after ``timestamp`` (µs since
        the Unix epoch), or ``next`` without a timestamp.
        """

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        """Return the topics that have messages in a range of offsets."""

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[BatchOrGap]:
        """Read the messages from ``start`` to before ``stop``, of ``topics`` (None: all topics).

        If the range begins before the first message that is left, ExpiredBefore comes first. A
        DamagedRange takes the place of its messages. ``epoch`` is as in ``check``.
        """

    def cuts(self, start: int, stop: int) -> list[int]:
        """Return offsets between ``start`` and ``stop``, in order, at which to divide the range.

        No part of the history is read twice for two ranges that meet there.
        """

    def check(self, position: int, epoch: str) -> None:
        """Raise WrongHistory unless ``position``, reached in ``epoch``, belongs to this history."""

    def report_position(
        self, reader: str, position: int, epoch: str, quiet: tuple[int, str] | None = None
    ) -> bool:
        """Store the position of ``reader`` at the broker; return False if none stores it.

        With ``quiet``, nothing had to be read from that offset on; the text stands for the topics.
        """

    def quiet_until(self, reader: str, start: int, topics: str) -> int | None:
        """Return the position that ``reader`` reported as quiet from ``start`` on; None without."""
