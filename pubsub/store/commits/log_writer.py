"""Writing the log: records are appended to the newest segment, and synced.

``commit_state_machine.py`` decides when. Writes run in one thread at a time, and so do syncs, but
a sync may run beside a write. Written bytes that are not synced stay in memory: if a sync fails,
the operating system may have dropped it, so it is written again before the next sync.

No offset that a reader may have seen is assigned again after a loss of power. Each record has the
ceiling, an offset on disk that all messages stay below; before they reach it, a record with a
higher ceiling is written and synced.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Sequence
from threading import Lock

from pubsub.store.catalog.catalog import Catalog
from pubsub.store.commits.ceiling import Ceiling
from pubsub.store.commits.metadata_copy import MetadataCopy
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.metadata.metadata import Metadata
from pubsub.store.records.record import (
    CLOSED,
    SEALED,
    Operation,
    Put,
    Record,
    encode,
    record_of_runs,
)
from pubsub.store.records.record import (
    LOST as LOST_FLAG,
)
from pubsub.store.records.stored_runs import RunRecord, last_offset_of, run_of, topics_of
from pubsub.store.records.topic_counts import TopicCounts
from pubsub.store.segments.log_directory import POSITION, LogDirectory
from pubsub.store.segments.log_files import SALT_BYTES, write_all, write_note, write_padded
from pubsub.store.segments.open_segment import OpenSegment, WrittenRecords
from pubsub.store.segments.segment import SEGMENT_HEAD_BYTES, Segment, SegmentHead
from pubsub.store.segments.segment_index import DEFAULT_GRAIN, LOST, Grain, SegmentIndex
from pubsub.store.segments.uncached_writes import RecordWriter

SEGMENT_BYTES = 64 * 1024**2
"""Bytes from which on a segment gets no more records, unless the file system is small."""
_SEGMENTS = 16  # for which even a small file system has room: each expires as a whole
_SEGMENT_RECORDS = 65_536
# Records of at most this many bytes have zeros written behind them, up to a multiple of _GROWTH:
# a sync of the next ones need not write the new size of the file.
_SMALL = 64 * 1024
_GROWTH = 256 * 1024
# A group of at most so many bytes and runs is written in some microseconds.
_QUICK_BYTES, _QUICK_RUNS = 16 * 1024, 64


class LogWriter:
    """Writes the log in ``directory``; ``run`` is the number from which message ids are made.

    Its methods run in threads. They raise OSError or sqlite3.Error; the next ``write`` of the same
    group continues it, and the next sync repeats the failed step.
    """

    def __init__(
        self,
        directory: LogDirectory,
        catalog: Catalog,
        metadata: Metadata,
        run: int,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
        grain: Grain = DEFAULT_GRAIN,
        uncached: bool = True,
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._run = run
        self._clock = clock
        self._grain = grain
        self._records = RecordWriter(uncached)
        self._log_id = metadata.state().log_id
        self._epoch = self._sequence = self._offset = 0
        self.part = SEGMENT_BYTES
        """Bytes that a segment may have on a file system of this size; for any thread."""
        self._open: OpenSegment | None = None
        self._to_seal: list[OpenSegment] = []
        self._unsynced: list[WrittenRecords] = []
        self._newest: WrittenRecords | None = None
        self._copy = MetadataCopy(directory, metadata)
        self._names_changed = self._sync_failed = False
        self._ceiling = Ceiling()
        self._lock = Lock()
        self._sync_lock = Lock()
        self._note = -1

    def use_grain(self, grain: Grain) -> None:
        """Make entries of this size in the indexes, also in that of the newest segment."""
        self._grain = grain
        segments = self._catalog.segments
        if segments and not segments[-1].sealed:
            segments[-1].index.use_grain(grain)

    # Beginning

    def begin(
        self,
        offset: int,
        epoch: int,
        sequence: int,
        operations: Sequence[Operation],
        lost: tuple[int, int] | None,
    ) -> None:
        """Continue the log at ``offset`` in a new segment, numbered ``sequence``.

        ``operations`` begin the epoch. ``lost`` is a range of offsets that ends there, which is to
        be read as damaged.
        """
        self._epoch, self._sequence = epoch, sequence
        self._offset = offset
        self._ceiling.set(offset)
        base = offset if lost is None else lost[0]
        self._roll(base)
        try:
            if lost is not None:
                now = self._clock()
                self._append(
                    Record(base, offset - base, now, now, flags=LOST_FLAG),
                    {LOST: (offset - base, 0)},
                )
            self._raise_ceiling(operations)
            self._open_note()
        except BaseException:
            self._active().close()
            raise

    def _open_note(self) -> None:
        self._note = self._directory.open(POSITION, os.O_RDWR | os.O_CREAT)
        self._note_position()

    def _note_position(self) -> None:
        write_note(self._note, self._log_id, self._offset)

    # Writing

    def is_quick(self, group: WriteGroup) -> bool:
        """Return whether ``group`` is small, and written without a sync or a new segment."""
        if group.puts or group.ends or group.nbytes > _QUICK_BYTES or len(group.runs) > _QUICK_RUNS:
            return False
        active = self._active()
        return (
            last_offset_of(group.runs[-1]) < self._ceiling.on_disk
            and not self._is_full(active.index)
            and not active.segment.sealed
            and not self._sync_failed
        )

    def write(self, group: WriteGroup | None, sync: bool) -> None:
        """Write ``group`` if there is one, then sync if asked to."""
        if group is not None:
            if group.offset < 0:
                group.offset = self._offset
            for piece in group.pieces(group.offset)[group.done :]:
                self._write_piece(*piece)
                group.done += 1
            self._note_position()
            group.free()
        if sync:
            self.sync()

    def _write_piece(
        self, base: int, stop: int, runs: Sequence[RunRecord], operations: Sequence[Operation]
    ) -> None:
        if self._active().segment.sealed or self._is_full(self._active().index):
            self._seal(base)
            self._roll(base)
        if os.fstat(self._active().file).st_nlink == 0:
            raise OSError(errno.ESTALE, f"{self._directory.path}: the newest segment was removed")
        if stop > self._ceiling.on_disk:
            self._raise_ceiling(beyond=stop)
        else:
            self._ceiling.raise_early(stop)
        resolved = [
            one._replace(value=one.value()) if isinstance(one, Put) and callable(one.value) else one
            for one in operations
        ]
        run = (run_of(runs[0]) if runs else 0) or self._run
        record = record_of_runs(runs, resolved, base, stop, run)
        self._append(record, topics_of(runs) if runs else {})

    def _append(self, record: Record, topics: TopicCounts) -> None:
        active = self._active()
        buffers, length = encode(record, active.segment.head.salt, self._epoch, self._ceiling.next)
        position = active.index.end
        end = position + length
        if length <= _SMALL and end > active.allocated:
            end = write_padded(active.file, buffers, position, -end % _GROWTH)
        else:
            self._records.write(active.file, buffers, position, length)
        active.allocated = max(active.allocated, end)
        with self._lock:
            newest, ceiling = self._newest, self._ceiling.next
            if newest is not None and newest.takes(active) and not record.operations:
                newest.add(position, buffers, ceiling)
            else:
                self._newest = WrittenRecords(
                    active, position, buffers, record.base, record.operations, ceiling
                )
                self._unsynced.append(self._newest)
        if record.operations:
            # No entry extends beyond the end of a topic.
            active.index.close_entry()
        active.index.add(record.base, record.stop, length, record.first, record.last, topics)
        self._offset = record.stop

    def _raise_ceiling(self, operations: Sequence[Operation] = (), beyond: int = 0) -> None:
        """Write a record with a higher ceiling, and sync."""
        self._ceiling.raise_beyond(max(beyond, self._offset))
        self._append(Record(self._offset, operations=operations), {})
        self.sync()

    def _active(self) -> OpenSegment:
        assert self._open is not None
        return self._open

    # Segments

    def take_sequence(self) -> int:
        """Return the number of the next file of the log. Any thread may call it."""
        with self._lock:
            self._sequence += 1
            return self._sequence - 1

    def _is_full(self, index: SegmentIndex) -> bool:
        return index.end >= min(SEGMENT_BYTES, self.part) or index.records >= _SEGMENT_RECORDS

    def _roll(self, base: int) -> None:
        """Begin a new segment."""
        head = SegmentHead(
            base, self.take_sequence(), secrets.token_bytes(SALT_BYTES), self._log_id, self._clock()
        )
        # Some file systems have no size.
        self.part = self._directory.free_bytes()[1] // _SEGMENTS or SEGMENT_BYTES
        index = SegmentIndex(base, SEGMENT_HEAD_BYTES, self._grain)
        segment = Segment(self._directory.file, head, base, index)
        file = self._directory.open(segment.name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(file, [head.encode()], 0)
        except BaseException:
            os.close(file)
            self._directory.remove(segment.name)
            raise
        with self._lock:
            self._names_changed = True
        self._open = OpenSegment(file, segment, index, SEGMENT_HEAD_BYTES)
        self._catalog.replace((), (segment,))

    def _seal(self, base: int) -> None:
        """End the newest segment."""
        active = self._active()
        if not active.segment.sealed:
            self._append(Record(base, flags=SEALED), {})
            os.ftruncate(active.file, active.index.end)
            active.segment.seal()
            with self._lock:
                self._to_seal.append(active)

    # Syncing

    def sync(self, final: bool = False) -> None:
        """Wait until everything that was written is on disk, then apply the operations.

        A ``final`` one also stores where the log ends. After a failure no write may run when it is
        called again: its record would not be among those that are written again.
        """
        with self._sync_lock:
            if self._sync_failed:
                self._write_again()
            with self._lock:
                written, self._newest = self._unsynced.copy(), None
                to_seal = self._to_seal.copy()
                names_changed, self._names_changed = self._names_changed, False
            try:
                self._directory.check()
                changed = [*to_seal, *[one.segment for one in written]]
                for segment in dict.fromkeys(changed):
                    os.fdatasync(segment.file)
                if names_changed:
                    self._directory.sync()
            except BaseException:
                self._sync_failed = True
                with self._lock:
                    self._names_changed = self._names_changed or names_changed
                raise
            with self._lock:
                del self._unsynced[: len(written)]
                if written:
                    self._ceiling.synced(written[-1].ceiling)
                self._copy.add(written)
            for one in written:
                one.buffers = []
            if self._copy.apply(to_seal, self._offset, final):
                with self._lock:
                    self._to_seal = [one for one in self._to_seal if one not in to_seal]
                for segment in to_seal:
                    segment.close()

    def _write_again(self) -> None:
        """Write the bytes that a failed sync may have lost.

        The operating system reports such a loss only once: the next sync succeeds nevertheless.
        """
        with self._lock:
            written, self._newest = self._unsynced.copy(), None
        for active in dict.fromkeys([one.segment for one in written]):
            write_all(active.file, [active.segment.head.encode()], 0)
        for one in written:
            write_all(one.segment.file, one.buffers, one.start)
        self._sync_failed = False

    @property
    def unapplied(self) -> tuple[int, int]:
        """Base and number of the first segment that the metadata may not have in full."""
        with self._lock:
            written = (*self._copy.waiting, *self._unsynced)
            waiting = [one.segment for one in written if one.operations] + self._to_seal
            if self._open is not None:
                waiting.append(self._open)
            return min([one.segment.place for one in waiting], default=(0, 0))

    @property
    def metadata_failing(self) -> str | None:
        """The reason why the metadata cannot be written; None while it can."""
        return self._copy.failing

    def close(self) -> None:
        """Mark the log as closed properly, and close the files."""
        try:
            if self._active().segment.sealed:
                self._roll(self._offset)
            self._ceiling.set(self._offset)
            self._append(Record(self._offset, flags=CLOSED), {})
            self.sync(final=True)
        finally:
            for one in {*self._to_seal, *([] if self._open is None else [self._open])}:
                one.close()
            self._open = None
            os.close(self._note)
