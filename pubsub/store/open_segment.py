"""The state of the log's writer: the segment that it appends to, and records not yet synced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pubsub.store.record import Operation
from pubsub.store.segment import Segment
from pubsub.store.segment_index import SegmentIndex


@dataclass(slots=True, eq=False)
class OpenSegment:
    """A segment that is being written, or was and is not synced yet.

    ``file`` is its descriptor; ``allocated`` the bytes that the file has, zeros at the end
    included.
    """

    file: int
    segment: Segment
    index: SegmentIndex
    allocated: int


@dataclass(slots=True, eq=False)
class WrittenRecord:
    """A record at ``position`` of a segment, until it is synced and its operations are applied.

    ``ceiling`` is the offset on disk that all messages stay below once the record is synced.
    """

    segment: OpenSegment
    position: int
    buffers: list[bytes | memoryview]
    base: int
    operations: Sequence[Operation]
    ceiling: int
