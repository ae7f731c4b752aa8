"""Segments that were not completed, or that have operations to apply: read and completed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from twisted.logger import Logger

from pubsub.store.catalog.damage import Damage
from pubsub.store.metadata.metadata import LogPlace, SealedSegment
from pubsub.store.records.record import CLOSED, SEALED, Found, Operation, Record, encode
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.log_files import write_all, write_index
from pubsub.store.segments.segment import (
    SEGMENT_HEAD_BYTES,
    Segment,
)
from pubsub.store.segments.segment_index import SegmentIndex
from pubsub.store.segments.segment_scan import survey

log = Logger()


@dataclass(slots=True)
class Scanned:
    """The result of a scan of a segment. ``ceiling`` and the flags are those of its last record."""

    segment: Segment
    index: SegmentIndex
    ceiling: int = 0
    closed: bool = False
    sealed: bool = False

    @property
    def is_whole(self) -> bool:
        """True if the log was closed properly, or was migrated."""
        return self.closed or (self.sealed and self.ceiling <= self.index.stop)


class SegmentScanner:
    """Reads the segments in ``directory`` when a log is opened.

    Operations of the metadata behind the place ``applied`` are collected in ``operations``, with
    the first offset of their record. Unreadable ranges are reported, and noted in ``damage``.
    """

    def __init__(self, directory: LogDirectory, applied: LogPlace, damage: Damage) -> None:
        self.operations: list[tuple[int, Sequence[Operation]]] = []
        self._directory = directory
        self._applied = applied
        self._damage = damage

    def scan(self, segment: Segment) -> Scanned:
        """Read a segment, and let it end behind its last record."""
        found = Scanned(segment, SegmentIndex(segment.base, SEGMENT_HEAD_BYTES))
        last = self._collect(segment, found.index)
        if last is not None:
            found.ceiling = last.head.ceiling
            found.closed = bool(last.head.flags & CLOSED)
            found.sealed = bool(last.head.flags & SEALED)
        segment.limit(found.index.stop)
        return found

    def _collect(self, segment: Segment, index: SegmentIndex) -> Found | None:
        """Read a segment; take operations that were not applied; return the last record."""
        last = None
        file = self._directory.open(segment.name, os.O_RDONLY)
        try:
            for item in survey(file, segment.head.salt, index):
                if not isinstance(item, Found):
                    self._report_damaged(*item)
                    continue
                last = item
                place = LogPlace(*segment.place, item.position)
                if item.head.sizes[6] and place > self._applied:
                    self.operations.append((item.head.base, item.operations()))
        finally:
            os.close(file)
        return last

    def complete(self, found: Scanned, offset: int) -> SealedSegment:
        """Let a segment that was being written end behind its last record."""
        segment, index = found.segment, found.index
        file = self._directory.open(segment.name, os.O_RDWR)
        try:
            if not found.sealed:
                buffers, length = encode(
                    Record(index.stop, flags=SEALED), segment.head.salt, 0,
                    max(found.ceiling, offset),
                )  # fmt: skip
                write_all(file, buffers, index.end)
                index.close_entry()
                index.add(index.stop, index.stop, length, 0, 0, {})
            if os.fstat(file).st_size > index.end:
                os.ftruncate(file, index.end)
            os.fdatasync(file)
        finally:
            os.close(file)
        write_index(self._directory, segment, index)
        return SealedSegment(
            segment.base, segment.head.sequence, segment.stop, index.end, segment.head.salt,
            segment.head.created, index.last_timestamp,
        )  # fmt: skip

    def _report_damaged(self, start: int, stop: int) -> None:
        if stop > start:
            self._damage.note(start, stop)
            log.error(
                "history: offsets {first} to {last} are damaged and cannot be read",
                first=start,
                last=stop - 1,
            )
        else:
            log.error("history: a record of metadata at offset {offset} is damaged", offset=start)
