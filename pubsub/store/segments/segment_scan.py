"""Scanning a segment: its records one after another, damage between them, and its index.

Recovery, the check, and readers in other processes use this; readers with an index do not need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pubsub.store.records.record import (
    HEAD_BYTES,
    SEALED,
    Found,
    RecordHead,
    decode_head,
    is_intact,
)
from pubsub.store.records.record import LOST as LOST_FLAG
from pubsub.store.records.record import START as RECORD_START
from pubsub.store.records.topic_counts import TopicCounts
from pubsub.store.segments.segment_index import LOST, SegmentIndex

# Bytes that a scan reads at a time.
_CHUNK = 1024**2


def scan(file: int, position: int, salt: bytes, size: int | None = None) -> Iterator[Found]:
    """Yield the records of ``file`` from ``position`` on, up to the first that is not intact."""
    size = os.fstat(file).st_size if size is None else size
    data = memoryview(b"")
    start = position
    while position + HEAD_BYTES <= size:
        at = position - start
        head = decode_head(data, salt, at)
        if head is None and len(data) - at >= HEAD_BYTES:
            return
        if head is None or at + head.length > len(data):
            wanted = HEAD_BYTES if head is None else head.length
            if position + wanted > size:
                return
            start, data = position, memoryview(os.pread(file, max(wanted, _CHUNK), position))
            if len(data) < wanted:
                return
            continue
        record = data[at : at + head.length]
        if not is_intact(head, record):
            return
        yield Found(head, position, record)
        position += head.length


def survey(file: int, salt: bytes, index: SegmentIndex) -> Iterator[Found | tuple[int, int]]:
    """Add all records of a segment to ``index``, and yield them.

    Between them come the ranges of offsets (start, stop) of which records are damaged. Bytes
    behind the last record that is intact are left alone.
    """
    size = os.fstat(file).st_size
    while True:
        for found in scan(file, index.end, salt, size):
            if found.head.base != index.stop:
                break
            add_to_index(index, found)
            yield found
        following = _next_record(file, index, salt, size)
        if following is None:
            return
        written = next(scan(file, index.end, salt, size), None)
        if written is not None and written.head.base == index.stop:
            # It was being written when it was read first.
            continue
        head, position = following
        lost = (index.stop, head.base)
        add_damage(index, head.base, position - index.end)
        yield lost


def add_damage(index: SegmentIndex, stop: int, length: int) -> None:
    """Add ``length`` bytes that are damaged to an index, in an entry of their own."""
    index.close_entry()
    last = index.last_timestamp
    lost = {LOST: (stop - index.stop, 0)} if stop > index.stop else {}
    index.add(index.stop, stop, length, last, last, lost)
    index.close_entry()


def _next_record(
    file: int, index: SegmentIndex, salt: bytes, size: int
) -> tuple[RecordHead, int] | None:
    """Return the head and the position of the first intact record behind damage."""
    position = index.end
    while position + HEAD_BYTES <= size:
        data = os.pread(file, _CHUNK, position)
        if len(data) < HEAD_BYTES:
            return None
        at = data.find(RECORD_START)
        while at >= 0:
            head = decode_head(data, salt, at)
            # A record that extends beyond ``size`` was being written when that was determined.
            if head is not None and head.base >= index.stop and position + at + head.length <= size:
                record = memoryview(os.pread(file, head.length, position + at))
                if is_intact(head, record):
                    return head, position + at
            at = data.find(RECORD_START, at + 1)
        position += len(data) - HEAD_BYTES + 1
    return None


def topics_of_record(found: Found) -> TopicCounts:
    """Return the messages and bytes of a record by topic; all that are lost as LOST."""
    if found.head.flags & LOST_FLAG:
        return {LOST: (found.head.count, 0)}
    return found.block().totals() if found.head.sizes[1] else {}


def add_to_index(index: SegmentIndex, found: Found) -> None:
    """Add a record to the index of its segment."""
    head = found.head
    if head.sizes[6]:
        # No entry extends beyond the end of a topic.
        index.close_entry()
    index.add(head.base, head.stop, head.length, head.first, head.last, topics_of_record(found))


def is_sealed(file: int, size: int, salt: bytes) -> int | None:
    """Return the offset after the last message of a segment that is sealed; None if it is not."""
    if size < HEAD_BYTES:
        return None
    data = memoryview(os.pread(file, HEAD_BYTES, size - HEAD_BYTES))
    head = decode_head(data, salt)
    if head is None or not head.flags & SEALED or not is_intact(head, data):
        return None
    return head.stop
