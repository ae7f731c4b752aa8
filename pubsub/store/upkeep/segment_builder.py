"""Building a segment of large records from blocks of any size."""

from __future__ import annotations

import os
import secrets

from pubsub.store.metadata.metadata import SealedSegment
from pubsub.store.records.block import Block, decode_block, encode_block, join_blocks
from pubsub.store.records.block_columns import RUN
from pubsub.store.records.record import (
    COMPRESSED,
    REWRITTEN,
    SEALED,
    Record,
    encode,
    record_of_block,
)
from pubsub.store.records.record import LOST as LOST_FLAG
from pubsub.store.records.topic_counts import TopicCounts
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.log_files import SALT_BYTES, write_all, write_index
from pubsub.store.segments.segment import SEGMENT_HEAD_BYTES, Segment, SegmentHead, index_name
from pubsub.store.segments.segment_index import DEFAULT_GRAIN, LOST, Grain, SegmentIndex

# Limits of a record that is made: runs, and its time span in µs.
_RUNS = 512
_SPAN = 600_000_000
# Offsets of a record with messages, which are numbered from its base in 32 bits.
_OFFSETS = 2**31


class SegmentBuilder:
    """A new segment from the offset ``base`` on, which is not visible before ``finish``.

    ``created`` is in µs. With ``compress``, records are compressed where that makes them smaller.
    Raises OSError.
    """

    def __init__(
        self,
        directory: LogDirectory,
        log_id: bytes,
        base: int,
        sequence: int,
        created: int,
        grain: Grain = DEFAULT_GRAIN,
        compress: bool = False,
    ) -> None:
        self._compress = compress
        self._directory = directory
        self._head = SegmentHead(base, sequence, secrets.token_bytes(SALT_BYTES), log_id, created)
        self._grain = grain
        self._index = SegmentIndex(base, SEGMENT_HEAD_BYTES, grain)
        self._segment = Segment(directory.file, self._head, base, self._index)
        self._name = self._segment.name + ".new"
        self._blocks: list[Block] = []
        self._size = self._runs = 0
        self._file = directory.open(self._name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self._file, [self._head.encode()], 0)
        except BaseException:
            self.discard()
            raise

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self._blocks[-1].stop if self._blocks else self._index.stop

    @property
    def nbytes(self) -> int:
        """Bytes of the file so far."""
        return self._index.end

    def add(self, block: Block) -> None:
        """Add the next block; one without runs stands for offsets whose messages have expired."""
        size, runs = len(block.payloads), len(block.runs) // RUN.size
        first = self._blocks[0] if self._blocks else block
        if (
            self._size + size > self._grain.nbytes
            or block.base - first.base >= self._grain.messages
            or block.stop - first.base > _OFFSETS
            or self._runs + runs > _RUNS
            or (runs and self._runs and block.run != first.run)
            or (runs and self._runs and block.last - first.first > _SPAN)
        ):
            self._flush()
        self._blocks.append(block)
        self._size += size
        self._runs += runs

    def add_lost(self, start: int, stop: int, timestamp: int) -> None:
        """Add a range of offsets whose messages are lost; they expire as if of ``timestamp``."""
        self._flush()
        lost = Record(start, stop - start, timestamp, timestamp, flags=LOST_FLAG)
        self._append(lost, {LOST: (lost.count, 0)})

    def _flush(self) -> None:
        """Write the blocks that are collected as one record."""
        blocks, self._blocks = self._blocks, []
        self._size = self._runs = 0
        if not blocks:
            return
        base, stop = blocks[0].base, blocks[-1].stop
        full = [block for block in blocks if block.runs]
        if not full:
            if stop > base:
                self._append(Record(base, stop - base), {})
            return
        block = join_blocks(full) if len(full) > 1 else full[0]
        if (block.base, block.stop) != (base, stop):
            # Offsets around it whose messages have expired belong to it.
            records = [run.record() for run in decode_block(block)]
            block = encode_block(records, block.run, base, stop)
        self._append(record_of_block(block), block.totals())

    def _append(self, record: Record, topics: TopicCounts) -> None:
        buffers, length = encode(record, self._head.salt, REWRITTEN, record.stop, self._compress)
        write_all(self._file, buffers, self._index.end)
        self._index.add(record.base, record.stop, length, record.first, record.last, topics)

    def sync(self) -> None:
        """End the segment, and wait until it is on disk."""
        self._flush()
        flags = SEALED | COMPRESSED if self._compress else SEALED
        self._append(Record(self._index.stop, flags=flags), {})
        os.fdatasync(self._file)

    def finish(self) -> tuple[Segment, SealedSegment]:
        """Give the file its name; return the segment, and its row for the metadata.

        The file is removed if that fails.
        """
        try:
            self._close()
            self._directory.rename(self._name, self._segment.name)
            self._directory.sync()
        except BaseException:
            self.discard()
            raise
        write_index(self._directory, self._segment, self._index)
        self._segment.seal()
        index, head = self._index, self._head
        row = SealedSegment(
            head.base, head.sequence, index.stop, index.end, head.salt, head.created,
            index.last_timestamp,
        )  # fmt: skip
        return self._segment, row

    def discard(self) -> None:
        """Remove the file, which the metadata do not list."""
        self._close()
        name = self._segment.name
        for one in (self._name, index_name(name), name):
            self._directory.remove(one)

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
