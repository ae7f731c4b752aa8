"""The sparse index of a segment: where its entries are, their times, and their topics. Sans-IO.

An entry is a stretch of whole records, of about ``ENTRY_BYTES``, or a single larger record. For
each entry the index has its first offset, its position in the file, its first and last timestamp,
and the messages and bytes of each topic. ``docs/history-format.md`` specifies the file.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import groupby
from threading import Lock
from typing import NamedTuple
from zlib import crc32

from pubsub.store.records.block_columns import decode_names, encode_name, little_endian, numbers
from pubsub.store.records.topic_counts import TopicCounts, add_counts

LOST = "\0" * 256 + "lost"
"""The topic of lost messages of any topics; no other name is as long."""
ENTRY_BYTES = 256 * 1024
"""Bytes of an entry. Larger ones would slow down every read of a few messages."""
# µs: the largest time span of an entry, as its messages expire together.
_SPAN = 600_000_000
MAGIC = b"PUBSUBIX"
VERSION = 1
_HEAD = struct.Struct("<8sII8sQQQIIQ")
_CRC = struct.Struct("<I")
MAX_COUNT = 2**32 - 1
"""The most messages of a topic that an entry counts: a range that is lost may be longer."""
# Topics that are looked up one by one; for more, every entry is taken.
_LOOKED_UP = 64


class Grain(NamedTuple):
    """The size of entries: they end once they have this many bytes or messages."""

    nbytes: int = ENTRY_BYTES
    messages: int = 2**62


DEFAULT_GRAIN = Grain()


class IndexEntry(NamedTuple):
    """Offsets from ``base`` to before ``stop``, in bytes from ``position`` to before ``end``."""

    number: int
    base: int
    stop: int
    position: int
    end: int
    first: int
    last: int


class SegmentIndex:
    """The index of the records from ``base`` and ``position`` on.

    One thread adds; others may read at the same time, and see entries added before they began.
    """

    def __init__(self, base: int, position: int, grain: Grain = DEFAULT_GRAIN) -> None:
        self._grain = grain
        # The offset after the last message and the position after the last record. It is one
        # object, so that readers in other threads see both change at once.
        self._tail = (base, position)
        self.records = 0
        self._bases = array("Q")
        self._positions = array("Q")
        self._firsts = array("q")
        self._lasts = array("q")
        # Rows of the entries: topic, messages and bytes. An entry's rows end at its row end.
        self._row_ends = array("I")
        self._topics = array("I")
        self._counts = array("I")
        self._bytes = array("Q")
        self._names: dict[str, int] = {}
        # The topics of the newest entry, which has no rows yet.
        self._newest: TopicCounts = {}
        self._closed = True
        self._lock = Lock()

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self._tail[0]

    @property
    def end(self) -> int:
        """The position after the last record."""
        return self._tail[1]

    def __len__(self) -> int:
        return len(self._bases)

    def add(
        self,
        base: int,
        stop: int,
        length: int,
        first: int,
        last: int,
        topics: Mapping[str, tuple[int, int]],
    ) -> None:
        """Add the next record, which has ``length`` bytes; ``topics`` are its messages."""
        with self._lock:
            if (
                self._closed
                or self.end + length - self._positions[-1] > self._grain.nbytes
                or base - self._bases[-1] >= self._grain.messages
                or last - self._firsts[-1] > _SPAN
            ):
                self._close_entry()
                self._closed = False
                self._lasts.append(last)
                self._firsts.append(first)
                self._positions.append(self.end)
                # Readers take the number of entries from this column, which is the last.
                self._bases.append(base)
            elif topics:
                self._firsts[-1] = min(first, self._firsts[-1]) if self._newest else first
                self._lasts[-1] = max(last, self._lasts[-1])
            if self._newest:
                add_counts(self._newest, topics.items())
            else:
                self._newest.update(topics)
            self.records += 1
            self._tail = (stop, self.end + length)

    def use_grain(self, grain: Grain) -> None:
        """Make entries of this size with the next record. Any thread may call it."""
        with self._lock:
            self._grain = grain
            self._close_entry()

    def close_entry(self) -> None:
        """Begin another entry with the next record. Any thread may call it."""
        with self._lock:
            self._close_entry()

    def _close_entry(self) -> None:
        if self._closed:
            return
        # By columns: a publisher for many topics makes as many rows with each read.
        names, newest = self._names, self._newest
        self._topics.extend([names.setdefault(name, len(names)) for name in newest])
        self._counts.extend([min(count, MAX_COUNT) for count, _ in newest.values()])
        self._bytes.extend([nbytes for _, nbytes in newest.values()])
        self._closed = True
        self._row_ends.append(len(self._topics))
        self._newest = {}

    @property
    def closed_entries(self) -> int:
        """The number of entries that get no more records."""
        return len(self._row_ends)

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all messages."""
        return frozenset([*self._names, *self._newest.copy()])

    def entry(self, number: int) -> IndexEntry:
        """Return one entry."""
        stop, end = self._tail
        if number + 1 < len(self._bases):
            stop, end = self._bases[number + 1], self._positions[number + 1]
        return IndexEntry(
            number, self._bases[number], stop, self._positions[number], end,
            self._firsts[number], self._lasts[number],
        )  # fmt: skip

    def entry_at(self, offset: int) -> int:
        """Return the number of the entry that has ``offset``, or of the first."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def contents(self, number: int) -> TopicCounts:
        """Return the messages of an entry by topic."""
        # In this order, as the writer closes an entry in the other.
        newest = self._newest.copy()
        if number >= len(self._row_ends):
            return newest
        names = self._name_list()
        start = self._row_ends[number - 1] if number else 0
        stop = self._row_ends[number]
        return {
            names[topic]: (count, nbytes)
            for topic, count, nbytes in zip(
                self._topics[start:stop],
                self._counts[start:stop],
                self._bytes[start:stop],
                strict=True,
            )
        }

    def entries_with(self, topics: frozenset[str] | None, start: int = 0) -> Iterator[int]:
        """Yield the numbers of the entries from ``start`` on that have messages of ``topics``."""
        if topics is None or len(topics) > _LOOKED_UP:
            yield from range(start, len(self))
            return
        # In this order, as the writer closes an entry in the other.
        newest = self._newest.copy()
        last = len(self._row_ends)
        known = [self._names[name] for name in topics if name in self._names]
        for number, _ in groupby(merge(*[self._entries_of(topic, start) for topic in known])):
            if number < last:
                yield number
        if start <= last < len(self) and not topics.isdisjoint(newest):
            yield last

    def _entries_of(self, topic: int, start: int) -> Iterator[int]:
        at = self._row_ends[start - 1] if 0 < start <= len(self._row_ends) else 0
        if start > len(self._row_ends):
            return
        rows, ends = self._topics, self._row_ends
        while True:
            try:
                row = rows.index(topic, at)
            except ValueError:
                return
            number = bisect_right(ends, row)
            if number >= len(ends):
                return
            yield number
            at = ends[number]

    def totals(self, start: int = 0, stop: int | None = None) -> TopicCounts:
        """Return the messages of the entries from ``start`` to before ``stop`` by topic."""
        found: TopicCounts = {}
        for number in range(start, len(self) if stop is None else stop):
            add_counts(found, self.contents(number).items())
        return found

    @property
    def first_timestamp(self) -> int:
        """The smallest timestamp (µs), 0 without messages."""
        return min(self._firsts, default=0)

    @property
    def last_timestamp(self) -> int:
        """The largest timestamp (µs), 0 without messages."""
        return max(self._lasts, default=0)

    def _name_list(self) -> list[str]:
        return list(self._names)

    # The file

    def encode(self, salt: bytes) -> bytes:
        """Return the file of a segment with this ``salt``, which gets no more records."""
        self.close_entry()
        columns = (
            self._bases, self._positions, self._firsts, self._lasts, self._row_ends,
            self._topics, self._counts, self._bytes,
        )  # fmt: skip
        names = b"".join([encode_name(name.encode()) for name in self._names])
        head = _HEAD.pack(
            MAGIC, VERSION, self.records, salt, self.stop, self.end, len(names),
            len(self._bases), len(self._topics), 0,
        )  # fmt: skip
        body = b"".join([little_endian(column).tobytes() for column in columns])
        data = head + body + names
        return data + _CRC.pack(crc32(data))

    @classmethod
    def decode(cls, data: bytes, salt: bytes) -> SegmentIndex | None:
        """Return the index in a file; None if it is damaged or that of another segment."""
        if len(data) < _HEAD.size + _CRC.size:
            return None
        (
            magic, version, records, own_salt, stop, end, names_size, entries, rows, _,
        ) = _HEAD.unpack_from(data)  # fmt: skip
        if magic != MAGIC or version != VERSION or own_salt != salt:
            return None
        if crc32(data[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
            return None
        made = cls(0, 0)
        made._tail, made.records = (stop, end), records
        at = _HEAD.size
        columns: list[array[int]] = []
        for kind, number in (
            ("Q", entries), ("Q", entries), ("q", entries), ("q", entries), ("I", entries),
            ("I", rows), ("I", rows), ("Q", rows),
        ):  # fmt: skip
            size = number * array(kind).itemsize
            columns.append(numbers(kind, data[at : at + size]))
            at += size
        (
            made._bases, made._positions, made._firsts, made._lasts, made._row_ends,
            made._topics, made._counts, made._bytes,
        ) = columns  # fmt: skip
        names = decode_names(data[at : at + names_size])
        made._names = {name.decode(): number for number, name in enumerate(names)}
        return made

    @property
    def nbytes(self) -> int:
        """Estimated bytes of memory."""
        return 36 * len(self._bases) + 16 * len(self._topics) + 120 * len(self._names)
