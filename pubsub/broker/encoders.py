"""Encoders: a batch, as frames of one wire, for subscribers of one or of several of its topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from sys import maxsize
from typing import TYPE_CHECKING, Protocol

from pubsub.kernel import FrameEncoder

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.interfaces import Encoding, HeadEncoding, RunEncoding
    from pubsub.kernel import Head


class BatchEncoder(Protocol):
    """Writes batches whose topics have the encodings it was made for.

    ``limit`` is the largest payload that all of them carry, ``limits`` has that of each index.
    """

    @property
    def limit(self) -> int: ...

    @property
    def limits(self) -> Sequence[int]: ...

    def encode(self, batch: Batch) -> tuple[bytes, int]:
        """Return whole frames, in order, and the number of messages in them.

        Messages over the limit of their encoding, and those of topics without one, are left out.
        """


def make_encoder(encodings: Sequence[Encoding | None]) -> BatchEncoder:
    """Return the encoder for batches whose topics have ``encodings``, by index."""
    given = [encoding for encoding in encodings if encoding is not None]
    if len({type(encoding) for encoding in given}) == 1 and hasattr(given[0], "heads"):
        return _HeadEncoder(encodings)  # type: ignore[arg-type]
    return _RunEncoder(encodings)  # type: ignore[arg-type]


def too_large(encoder: BatchEncoder, batch: Batch) -> Counter[int]:
    """Return how many messages of each index are over the limit of their encoding."""
    limits, columns = encoder.limits, batch.columns
    return Counter(
        index
        for index, size in zip(columns.indexes(), columns.sizes(), strict=True)
        if size > limits[index]
    )


def _limits(encodings: Sequence[Encoding | None]) -> list[int]:
    return [maxsize if encoding is None else encoding.limit for encoding in encodings]


@lru_cache(maxsize=1024)
def _heads_of(encoding: HeadEncoding) -> tuple[Head, ...]:
    """Return the heads of ``encoding``; many audiences of a read have it."""
    return encoding.heads


class _HeadEncoder:
    """A step of the kernel for each message."""

    __slots__ = ("_frames", "_variable", "limit", "limits")

    def __init__(self, encodings: Sequence[HeadEncoding | None]) -> None:
        heads: list[tuple[Head, ...]] = [
            () if encoding is None else _heads_of(encoding)  # type: ignore[arg-type]
            for encoding in encodings
        ]
        given = [encoding for encoding in encodings if encoding is not None]
        one = given[0]
        self._frames = FrameEncoder(heads, one.variable_at, one.variable_size)
        self._variable = one.variable if one.variable_size else None
        self.limits = _limits(encodings)
        self.limit = min(self.limits)

    def encode(self, batch: Batch) -> tuple[bytes, int]:
        if self._variable is None:
            return self._frames.encode(batch.columns)
        return self._frames.encode(batch.columns, self._variable(batch))


class _RunEncoder:
    """A call of ``RunEncoding.encode`` for consecutive messages of one topic."""

    __slots__ = ("_encodings", "limit", "limits")

    def __init__(self, encodings: Sequence[RunEncoding | None]) -> None:
        self._encodings = encodings
        self.limits = _limits(encodings)
        self.limit = min(self.limits)

    def encode(self, batch: Batch) -> tuple[bytes, int]:
        parts: list[bytes] = []
        count = 0
        for index, run in batch.runs():
            encoding = self._encodings[index]
            fitting = None if encoding is None else run.within(encoding.limit)
            if encoding is not None and fitting is not None:
                parts.append(encoding.encode(fitting))
                count += fitting.columns.count
        return b"".join(parts), count
