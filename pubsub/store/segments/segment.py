"""Segments: the files of the log, and how they are read.

A segment has a head of 64 bytes and then records (see ``record.py``), whose offsets follow one
another without a gap. The last record of a segment that gets no more is marked as such. In the
newest segment zeros may follow the last record.

Files are read with ``pread``, not mapped: an input/output error or a file that is cut would
otherwise end the process with a signal.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from zlib import crc32

from pubsub.errors import NewerVersion
from pubsub.store.records.record import COMPRESSED, HEAD_BYTES, Found, decode_head, is_intact
from pubsub.store.records.record import START as RECORD_START
from pubsub.store.segments.segment_index import LOST, IndexEntry, SegmentIndex
from pubsub.store.segments.segment_scan import add_damage, survey

SUFFIX, INDEX_SUFFIX = ".log", ".index"
MAGIC = b"PUBSUBLG"
VERSION = 1
_HEAD = struct.Struct("<8sIIQQ8s8sq")
_CRC = struct.Struct("<II")
# Offsets and numbers are below this: SQLite has no larger ones.
_NUMBERS = 2**63
SEGMENT_HEAD_BYTES = _HEAD.size + _CRC.size
UNREADABLE = errno.EIO, errno.ENOENT
"""Errors of a disk that does not have a file any more; others, as of too many open files, pass."""


class NotASegment(Exception):
    """The file is not a segment of this version; the text says why."""


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """The head of a segment.

    ``sequence`` numbers the files of the log in the order in which they were made. Where two hold
    the same offsets, the one with the larger number is valid. ``log_id`` is that of the log.
    ``created`` is in µs.
    """

    base: int
    sequence: int
    salt: bytes
    log_id: bytes
    created: int

    def encode(self) -> bytes:
        """Return the bytes of the head."""
        data = _HEAD.pack(
            MAGIC, VERSION, 0, self.base, self.sequence, self.salt, self.log_id, self.created
        )
        return data + _CRC.pack(crc32(data), 0)

    @classmethod
    def decode(cls, data: bytes) -> SegmentHead:
        """Return the head at the start of ``data``; raises NotASegment or NewerVersion."""
        if not data.strip(b"\0"):
            raise NotASegment("the file is empty")
        if len(data) < SEGMENT_HEAD_BYTES or data[:8] != MAGIC:
            raise NotASegment("the file is not a segment of a history")
        if _CRC.unpack_from(data, _HEAD.size)[0] != crc32(data[: _HEAD.size]):
            raise NotASegment("the head of the segment is damaged")
        _, version, _, base, sequence, salt, log_id, created = _HEAD.unpack_from(data)
        if version != VERSION:
            raise NewerVersion(
                f"history: a segment has version {version}, and this broker supports up to "
                f"{VERSION}; use the version that wrote it"
            )
        return cls(base, sequence, salt, log_id, created)


def segment_name(base: int, sequence: int) -> str:
    """Return the name of a segment; names are in the order of the offsets."""
    return f"{base:020}-{sequence:08}{SUFFIX}"


def parse_name(name: str) -> tuple[int, int] | None:
    """Return the base and the sequence in the name of a segment; None if it is not one."""
    base, dash, sequence = name.removesuffix(SUFFIX).partition("-")
    if not (dash and name.isascii() and base.isdecimal() and sequence.isdecimal()):
        return None
    key = int(base), int(sequence)
    # A segment is read by the name that is made from its head.
    return key if name == segment_name(*key) and max(key) < _NUMBERS else None


def index_name(name: str) -> str:
    """Return the name of the index of the segment ``name``."""
    return name.removesuffix(SUFFIX) + INDEX_SUFFIX


class Segment:
    """A segment to be read, in the directory with the descriptor ``directory``.

    ``index`` is that of the newest segment, which grows; that of any other is read when it is
    needed first, or made again. Raises OSError.
    """

    def __init__(
        self,
        directory: int,
        head: SegmentHead,
        stop: int,
        index: SegmentIndex | None = None,
        last_timestamp: int | None = None,
    ) -> None:
        self.head = head
        self.name = segment_name(head.base, head.sequence)
        self.sealed = index is None
        self.removed = False
        """Whether the catalog has another segment in its place, or none."""
        self._directory = directory
        self._stop = stop
        self._index = index
        self._last = last_timestamp
        self._file = -1
        self._lock = Lock()

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    @property
    def base(self) -> int:
        """The offset of the first message."""
        return self.head.base

    @property
    def place(self) -> tuple[int, int]:
        """Base and number: segments are in this order."""
        return self.head.base, self.head.sequence

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self._stop if self.sealed or self._index is None else self._index.stop

    @property
    def last_timestamp(self) -> int:
        """The largest timestamp (µs)."""
        if self._last is None:
            last = self.index.last_timestamp
            if not self.sealed:
                return last
            self._last = last
        return self._last

    def limit(self, stop: int) -> None:
        """Set the offset after the last message of a segment that is not sealed properly."""
        self._stop = stop

    def seal(self) -> None:
        """Note that the segment gets no more records."""
        self._stop = self.stop
        self.sealed = True

    @property
    def index(self) -> SegmentIndex:
        """The index."""
        with self._lock:
            if self._index is None:
                self._index = self._read_index()
            return self._index

    @property
    def index_bytes(self) -> int:
        """Estimated bytes of memory of the index, 0 if it is not there."""
        index = self._index
        return 0 if index is None else index.nbytes

    def index_or_damage(self) -> SegmentIndex:
        """Return the index, or one of a damaged range if the disk has the files no more."""
        try:
            return self.index
        except OSError as error:
            damage = self.damage() if error.errno in UNREADABLE else None
            if damage is None:
                raise
            return damage

    def damage(self) -> SegmentIndex | None:
        """Return an index of a damaged range; None if the last timestamp is not known."""
        if self._last is None:
            return None
        index = SegmentIndex(self.base, SEGMENT_HEAD_BYTES)
        lost = {LOST: (self._stop - self.base, 0)}
        index.add(self.base, self._stop, 1, self._last, self._last, lost)
        index.close_entry()
        return index

    def release(self) -> None:
        """Release the index and the descriptor of a segment that was not read for a while."""
        with self._lock:
            if self.sealed:
                if self._index is not None and self._last is None:
                    self._last = self._index.last_timestamp
                self._index = None
                if self._file >= 0:
                    os.close(self._file)
                    self._file = -1

    def _read_index(self) -> SegmentIndex:
        try:
            file = _open(self._directory, index_name(self.name))
            try:
                data = os.pread(file, os.fstat(file).st_size, 0)
            finally:
                os.close(file)
        except OSError:
            return self._index_again()
        index = SegmentIndex.decode(data, self.head.salt)
        # That of a segment that was cut may extend over segments that follow.
        return index if index is not None and index.stop <= self._stop else self._index_again()

    def _index_again(self) -> SegmentIndex:
        """Make the index from the records."""
        file = self._descriptor()
        index = SegmentIndex(self.base, SEGMENT_HEAD_BYTES)
        for _ in survey(file, self.head.salt, index):
            pass
        if index.stop < self._stop:
            size = os.fstat(file).st_size
            add_damage(index, self._stop, max(size - index.end, 1))
        return index

    def _descriptor(self) -> int:
        if self._file < 0:
            self._file = _open(self._directory, self.name)
        return self._file

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from position ``start`` to before ``stop``, as far as there are any."""
        with self._lock:
            file = self._descriptor()
            # A descriptor of its own would be closed by ``release`` in another thread.
            return os.pread(file, stop - start, start)

    @property
    def compressed(self) -> bool:
        """Whether the records of the segment, which is sealed, were compressed where that helps."""
        with self._lock:
            file = self._descriptor()
            data = os.pread(file, HEAD_BYTES, os.fstat(file).st_size - HEAD_BYTES)
        head = decode_head(data, self.head.salt)
        return head is not None and bool(head.flags & COMPRESSED)

    def records(self, entry: IndexEntry) -> Iterator[Found | tuple[int, int]]:
        """Yield the records of an entry, and ranges of offsets (start, stop) that are damaged."""
        return self.records_in(entry, self.read(entry.position, entry.end))

    def records_in(self, entry: IndexEntry, whole: bytes) -> Iterator[Found | tuple[int, int]]:
        """Yield as ``records``, from the bytes of the entry."""
        data = memoryview(whole)
        salt = self.head.salt
        at, offset = 0, entry.base
        while at < len(data):
            head = decode_head(data, salt, at)
            if head is None or not offset <= head.base <= head.stop <= entry.stop:
                at = whole.find(RECORD_START, at + 1)
                if at < 0:
                    break
                continue
            if head.base > offset:
                yield offset, head.base
            record = data[at : at + head.length]
            if is_intact(head, record):
                yield Found(head, entry.position + at, record)
            else:
                yield head.base, head.stop
            at += head.length
            offset = head.stop
        if offset < entry.stop:
            yield offset, entry.stop


def _open(directory: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)


CUT_COPY = "it is not complete, and older segments have its messages"


def cut_copies(segments: Sequence[Segment], incomplete: Sequence[Segment]) -> list[Segment]:
    """Return the rewritten segments among ``incomplete`` of which the sources are still there.

    The first of these begins at the same offset. A segment that grows begins behind all others.
    """
    return [
        one
        for one in incomplete
        if any(
            other.base == one.base < other.stop
            and other.head.sequence < one.head.sequence
            and other not in incomplete
            for other in segments
        )
    ]


def read_head(file: int) -> SegmentHead:
    """Return the head of the open segment ``file``; raises NotASegment, NewerVersion or OSError."""
    return SegmentHead.decode(os.pread(file, SEGMENT_HEAD_BYTES, 0))
