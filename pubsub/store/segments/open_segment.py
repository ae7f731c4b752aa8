"""The state of the log's writer: the segment that it appends to, and records not yet synced."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pubsub.store.records.record import Operation
from pubsub.store.segments.segment import Segment
from pubsub.store.segments.segment_index import SegmentIndex

# A sync handles its records some at a time: thousands of objects would hold the interpreter for
# milliseconds.
_MOST_BUFFERS = 1000


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

    def close(self) -> None:
        """Close the file, once: another file may get the number of the descriptor."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)


@dataclass(slots=True, eq=False)
class WrittenRecords:
    """Records of a segment that follow one another, until they are synced and applied.

    They begin at ``start`` and are in ``buffers``; the last one is at ``position``. A record with
    ``operations`` is alone; ``base`` is its first offset. ``ceiling`` is the offset on disk that
    all messages stay below once the records are synced.
    """

    segment: OpenSegment
    start: int
    buffers: list[bytes | memoryview]
    base: int
    operations: Sequence[Operation]
    ceiling: int
    position: int = -1

    def __post_init__(self) -> None:
        self.position = self.start

    def takes(self, segment: OpenSegment) -> bool:
        """Return whether the next record of ``segment``, without operations, can be added."""
        return self.segment is segment and not self.operations and len(self.buffers) < _MOST_BUFFERS

    def add(self, position: int, buffers: Sequence[bytes | memoryview], ceiling: int) -> None:
        """Add the record behind the last one."""
        self.position, self.ceiling = position, ceiling
        self.buffers += buffers
