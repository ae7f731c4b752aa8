"""Rewriting segments: small records become large ones, and expired messages are left out.

Messages keep their offsets. The new segment takes the place of the old ones in one step; a crash
before that leaves a file that is removed at the next start, and a crash after it leaves old files,
which are removed because a newer segment holds their offsets.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence

from pubsub.store.block import Block, decode_block, encode_block, join_blocks
from pubsub.store.catalog import Catalog
from pubsub.store.columns import RUN
from pubsub.store.log_directory import LogDirectory
from pubsub.store.log_writer import SALT_BYTES, SEGMENT_BYTES, write_all, write_index
from pubsub.store.metadata import SealedSegment
from pubsub.store.parcel import TopicCounts
from pubsub.store.record import SEALED, Record, encode, record_of_block
from pubsub.store.segment import SEGMENT_HEAD_BYTES, Found, Segment, SegmentHead
from pubsub.store.segment_index import ENTRY_BYTES, LOST, Entry, SegmentIndex

# A segment is rewritten if it has more records than this, and they are smaller on average.
_RECORDS = 64
_RECORD_BYTES = 32 * 1024
# Neighbours smaller than this are joined when there are as many as _NEIGHBOURS.
_SMALL_SEGMENT = 8 * 1024**2
_NEIGHBOURS = 8
# Limits of a record that is made: payload bytes, runs, and its time span in µs.
_RUNS = 512
_SPAN = 600_000_000
# Bytes of a segment that are read in one step.
_STEP_BYTES = 512 * 1024


class Damaged(Exception):
    """A segment has damage and is not rewritten, so that what can be read of it stays."""


def to_rewrite(catalog: Catalog, before: int, rewritten: set[int]) -> list[Segment]:
    """Return neighbours to be rewritten together, of the segments that end by ``before``.

    ``rewritten`` has the numbers of segments whose records cannot be made larger.
    """
    sealed = [one for one in catalog.segments[:-1] if one.sealed and one.stop <= before]
    small: list[Segment] = []
    for segment in sealed:
        if segment.base == segment.stop:
            continue
        catalog.use(segment)
        index = segment.index
        if segment.head.sequence not in rewritten and (
            index.records > _RECORDS and index.end < index.records * _RECORD_BYTES
        ):
            return [segment]
        if _dead_part(catalog, segment, index) > 0.5:
            return [segment]
        if index.end >= _SMALL_SEGMENT or (
            sum(one.index.end for one in small) + index.end > SEGMENT_BYTES
        ):
            small = []
        else:
            small.append(segment)
        if len(small) == _NEIGHBOURS:
            return small
    return []


def _dead_part(catalog: Catalog, segment: Segment, index: SegmentIndex) -> float:
    """Return the part of the payload bytes of a segment that has expired."""
    if max((catalog.hidden_before(name) for name in index.topics), default=0) <= segment.base:
        return 0.0
    dead = total = 0
    for number in range(len(index)):
        stop = index.entry(number).stop
        for name, (count, nbytes) in index.contents(number).items():
            total += nbytes + count
            dead += nbytes + count if catalog.hidden_before(name) >= stop else 0
    return dead / total if total else 0.0


class Rewrite:
    """Rewrites ``sources``, which are neighbours, as the segment number ``sequence``."""

    def __init__(
        self,
        directory: LogDirectory,
        catalog: Catalog,
        sources: Sequence[Segment],
        sequence: int,
    ) -> None:
        self.sources = sources
        self._directory = directory
        self._catalog = catalog
        base = sources[0].base
        head = sources[0].head
        self._head = SegmentHead(
            base, sequence, secrets.token_bytes(SALT_BYTES), head.log_id, head.created
        )
        self._index = SegmentIndex(base, SEGMENT_HEAD_BYTES)
        self._segment = Segment(directory.file, self._head, base, self._index)
        self._name = self._segment.name + ".new"
        self._file = -1
        self._blocks: list[Block] = []
        self._size = self._number = 0

    def steps(self) -> Iterator[None]:
        """Write the new segment, a step at a time; raises OSError or Damaged."""
        self._file = self._directory.open(self._name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self._file, [self._head.encode()], 0)
            read = 0
            for source in self.sources:
                index = source.index
                for number in range(len(index)):
                    entry = index.entry(number)
                    self._take_entry(source, entry, index.contents(number))
                    read += entry.end - entry.position
                    if read >= _STEP_BYTES:
                        read = 0
                        yield
            self._flush()
            self._append(Record(self.sources[-1].stop, flags=SEALED), {})
            yield
            os.fdatasync(self._file)
        except BaseException:
            self._directory.remove(self._name)
            raise
        finally:
            os.close(self._file)

    def finish(self) -> tuple[Segment, SealedSegment]:
        """Put the new segment in its place; return it. The sources are still to be removed."""
        self._directory.rename(self._name, self._segment.name)
        self._directory.sync()
        write_index(self._directory, self._segment, self._index)
        self._segment.seal()
        index, head = self._index, self._head
        row = SealedSegment(
            head.base, head.sequence, index.stop, index.end, head.salt, head.created,
            index.last_timestamp,
        )  # fmt: skip
        return self._segment, row

    def _take_entry(self, source: Segment, entry: Entry, contents: TopicCounts) -> None:
        names = self._catalog.visible(contents, entry.stop)
        if LOST in contents:
            self._flush()
        for item in source.records(entry):
            if not isinstance(item, Found):
                raise Damaged
            if item.head.stop <= self._next_offset:
                continue
            if LOST in contents:
                head = item.head
                lost = Record(head.base, head.count, head.first, head.last, 0, head.flags)
                self._append(lost, {LOST: (head.count, 0)})
            else:
                self._take(_without_hidden(self._catalog, item, names))

    @property
    def _next_offset(self) -> int:
        return self._blocks[-1].stop if self._blocks else self._index.stop

    def _take(self, block: Block) -> None:
        size, runs = len(block.payloads), len(block.runs) // RUN.size
        first = self._blocks[0] if self._blocks else block
        if (
            self._size + size > ENTRY_BYTES
            or self._number + runs > _RUNS
            or (runs and block.run != first.run and self._number)
            or (runs and self._number and block.last - first.first > _SPAN)
        ):
            self._flush()
        self._blocks.append(block)
        self._size += size
        self._number += runs

    def _flush(self) -> None:
        """Write the blocks that are collected as one record."""
        blocks, self._blocks = self._blocks, []
        self._size = self._number = 0
        if not blocks:
            return
        whole = [block for block in blocks if block.runs]
        base, stop = blocks[0].base, blocks[-1].stop
        if not whole:
            if stop > base:
                self._append(Record(base, stop - base), {})
            return
        block = join_blocks(whole) if len(whole) > 1 else whole[0]
        record = record_of_block(block)
        if (block.base, block.stop) != (base, stop):
            # Offsets around it whose messages have expired belong to it.
            records = [run.record() for run in decode_block(block)]
            record = record_of_block(encode_block(records, block.run, base, stop, split=False))
        self._append(record, block.totals())

    def _append(self, record: Record, topics: TopicCounts) -> None:
        buffers, length = encode(record, self._head.salt, 0, record.stop)
        write_all(self._file, buffers, self._index.end)
        self._index.add(record.base, record.stop, length, record.first, record.last, topics)


def _without_hidden(catalog: Catalog, item: Found, names: frozenset[str]) -> Block:
    """Return the messages of a record without those that have expired."""
    block = item.block()
    head = item.head
    own = block.topics() if block.runs else set()
    if own <= names and all(catalog.hidden_before(name) <= head.base for name in own):
        return block
    shown = frozenset(name for name in own if catalog.hidden_before(name) < head.stop) & names
    runs = [
        one.record()
        for run in decode_block(block, shown)
        for one in run.split()
        if catalog.hidden_before(one.topic) <= one.offset
    ]
    return encode_block(runs, block.run, head.base, head.stop, split=False)
