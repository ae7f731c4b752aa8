"""An encoder of frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pubsub.broker.routing.batch import Batch
from pubsub.kernel import Head, LengthField


@dataclass(frozen=True)
class Framed:
    """An encoding with heads: the tag, a length and the last byte of the batch's timestamp."""

    tag: bytes
    limit: int = 100
    variable_at: ClassVar[int] = 2
    variable_size: ClassVar[int] = 1
    by_timestamp: ClassVar[bool] = True

    @property
    def heads(self) -> tuple[Head, ...]:
        return (Head(self.tag + bytes(2), (LengthField(1, 1),), self.limit),)

    def variable(self, batch: Batch) -> bytes:
        return bytes([batch.timestamp % 256])

    def frame(self, payload: bytes, timestamp: int) -> bytes:
        return self.tag + bytes([len(payload), timestamp % 256]) + payload
