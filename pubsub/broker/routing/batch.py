"""``Batch``: the messages of one read of one publisher, to one or several topics."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import TypeVar
from uuid import UUID

from pubsub.broker.publishing.senders import sender_of_each
from pubsub.broker.routing.batch_rows import BatchRows
from pubsub.broker.routing.packed_headers import PackedHeaders
from pubsub.kernel import Columns, Senders

Headers = Mapping[str, bytes]
MAX_HEADERS = 2**16 - 1
"""Headers of one message; the limit of the history's format."""
MAX_SENDER = 255
"""Bytes of a sender."""
_Key = TypeVar("_Key", bound=Hashable)
_ONE_BYTE = 256
# The place of the lowest byte in a u32 of this machine.
_LOWEST = 0 if sys.byteorder == "little" else 3


def headers_nbytes(headers: Headers) -> int:
    """Return the bytes of a message's headers: of their keys, as UTF-8, and of their values."""
    return sum([len(key.encode()) + len(value) for key, value in headers.items()])


def all_headers_nbytes(headers: Sequence[Headers]) -> int:
    """Return the bytes of the headers of all messages; see ``headers_nbytes``."""
    if isinstance(headers, PackedHeaders):
        return headers.nbytes
    return sum(map(headers_nbytes, headers))


def messages_nbytes(
    columns: Columns, sender: bytes | Senders, headers: Sequence[Headers] | None
) -> int:
    """Return the bytes of messages, as rates, retention and the sizes of topics measure them.

    A message has the bytes of its payload, of its sender and of its headers.
    """
    if isinstance(sender, bytes):
        nbytes = columns.nbytes + columns.count * len(sender)
    else:
        nbytes = columns.nbytes + sum(map(len, sender_of_each(sender)))
    return nbytes if headers is None else nbytes + all_headers_nbytes(headers)


def message_sizes(
    columns: Columns, sender: bytes | Senders, headers: Sequence[Headers] | None
) -> Sequence[int]:
    """Return the bytes of each message; see ``messages_nbytes``."""
    each = repeat(sender, columns.count) if isinstance(sender, bytes) else sender_of_each(sender)
    sizes = [size + len(own) for size, own in zip(columns.sizes(), each, strict=True)]
    if headers is None:
        return sizes
    return [size + headers_nbytes(own) for size, own in zip(sizes, headers, strict=True)]


def marks_of(columns: Columns, wanted: Sequence[int]) -> bytes:
    """Return a byte for each message: 1 if its index is ``wanted``, otherwise 0.

    ``wanted`` has a flag for each index.
    """
    flags = bytes(wanted)
    # In C, as there are thousands of messages, of which few may be wanted.
    if len(flags) <= _ONE_BYTE:
        # All indexes are told apart by their lowest byte.
        indexes = columns.words(of_indexes=True)[_LOWEST::4]
        return indexes.translate(flags.ljust(_ONE_BYTE, b"\0"))
    return bytes(map(flags.__getitem__, columns.indexes()))


def rows_with(columns: Columns, wanted: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where rows of messages begin and end whose indexes are ``wanted``; see ``marks_of``."""
    marks, stop = marks_of(columns, wanted), 0
    while (start := marks.find(1, stop)) >= 0:
        stop = marks.find(0, start)
        if stop < 0:
            stop = len(marks)
        yield start, stop


def with_used(topics: tuple[str, ...], columns: Columns) -> tuple[tuple[str, ...], Columns]:
    """Return those of ``topics`` that have messages, and the messages with indexes of these."""
    used = [index for index, _, _ in columns.totals()]
    if len(used) == len(topics):
        return topics, columns
    if len(used) == 1:
        return (topics[used[0]],), columns.runs()[0][1]
    places = [-1] * len(topics)
    for place, index in enumerate(used):
        places[index] = place
    return tuple([topics[index] for index in used]), columns.remap(places)


def indexed_by(
    columns: Columns, keys: Iterable[_Key], counts: Iterable[int] | None = None
) -> tuple[Columns, list[_Key]]:
    """Return the messages with an index for each of their ``keys``, and the distinct keys.

    A key is that of as many messages as ``counts`` has in its place, or of one.
    """
    places: dict[_Key, int] = {}
    indexes: Iterable[int] = [places.setdefault(key, len(places)) for key in keys]
    if counts is not None:
        indexes = chain.from_iterable(map(repeat, indexes, counts))
    data, sizes, _ = columns.pack()
    return Columns.unpack(data, sizes, array("I", indexes).tobytes()), list(places)


@dataclass(slots=True)
class Batch:
    """Messages that were published together, in the order of publishing.

    ``topics`` has the name for each index of ``columns``. ``timestamp`` is in µs since the Unix
    epoch and the same for all messages, because they arrived in one read. ``sequence`` numbers the
    first message within this run of the broker. ``offset`` is the place of the first message in
    the history, set by the store. ``headers`` has a mapping for each message, or is None if no
    message has any. ``run`` is the run of the broker that numbered them; 0 stands for this one.
    ``has_place`` is False if the messages are not in the history, and so have no offset: ``offset``
    is then that of the next message that is. ``unstored`` has the indexes of such messages if the
    others are stored (see ``partial_storage.py``). If messages of several publishers were read from
    the history together, or are written together for some of their subscribers, ``rows`` has their
    times, senders, numbers and offsets; they have no headers.
    """

    topics: tuple[str, ...]
    columns: Columns
    timestamp: int
    sequence: int
    sender: bytes
    protocol: str
    headers: Sequence[Headers] | None = None
    offset: int = -1
    run: int = 0
    unstored: frozenset[int] = frozenset()
    has_place: bool = True
    rows: BatchRows | None = None

    @property
    def topic(self) -> str:
        """The topic of a batch that has one."""
        return self.topics[0]

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.columns.count

    @property
    def nbytes(self) -> int:
        """The sum of the payloads' lengths."""
        return self.columns.nbytes

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self.offset + self.count if self.rows is None else self.rows.stop

    def offsets(self) -> Sequence[int]:
        """Return the offset of each message, all of which are stored."""
        if self.rows is None:
            return range(self.offset, self.stop)
        each = zip(self.rows.offsets, self.rows.counts, strict=True)
        return [offset + place for offset, count in each for place in range(count)]

    def payloads(self) -> list[bytes]:
        """Return the payload of each message."""
        return self.columns.payloads()

    def slice(self, start: int, stop: int) -> Batch:
        """Return the messages from position ``start`` up to ``stop``."""
        part = self._part(self.topics, self.columns.slice(start, stop), start, start)
        if self.rows is not None:
            part.take(self.rows.part(start, min(stop, self.count)))
        if self.unstored:
            before = self.columns.indexes()[:start]
            part.offset -= sum(map(self.unstored.__contains__, before))
            part.unstored = self.unstored
        return part

    def since(self, sequence: int) -> Batch | None:
        """Return the messages that have the number ``sequence`` or a later one, None if none."""
        before = sequence - self.sequence
        if before <= 0:
            return self
        return self.slice(before, self.count) if before < self.count else None

    def runs(self, wanted: Container[int] | None = None) -> Iterator[tuple[int, Batch]]:
        """Return consecutive messages of one topic as a batch of that topic, with its index.

        If indexes are ``wanted``, only those of them.
        """
        if self.rows is not None:
            for part in self.parts():
                yield from part.runs(wanted)
            return
        if len(self.topics) == 1:
            yield 0, self
            return
        if wanted is not None:
            for start, stop in rows_with(
                self.columns, [i in wanted for i in range(len(self.topics))]
            ):
                yield from self.slice(start, stop).runs()
            return
        start = stored = 0
        for index, columns in self.columns.runs():
            part = self._part((self.topics[index],), columns, start, stored)
            start += columns.count
            if index in self.unstored:
                part.has_place = False
            else:
                stored += columns.count
            yield index, part

    def parts(self) -> Iterator[Batch]:
        """Yield the messages of each row as a batch; the batch itself if it has none."""
        if self.rows is None:
            yield self
            return
        start = 0
        for count, _, offset, sequence, timestamp, sender in zip(*self.rows, strict=True):
            columns = self.columns.slice(start, start + count)
            yield Batch(
                self.topics, columns, timestamp, sequence, sender, self.protocol, None, offset,
                self.run, has_place=self.has_place,
            )  # fmt: skip
            start += count

    def take(self, rows: BatchRows) -> None:
        """Have these ``rows``, or what a single one has."""
        self.offset, self.sequence = rows.offsets[0], rows.sequences[0]
        self.timestamp, self.sender = rows.timestamps[0], rows.senders[0]
        self.rows = rows if len(rows.counts) > 1 else None

    def numbered(self) -> Iterator[Batch]:
        """Yield parts whose messages have consecutive offsets, from the part's on, or none."""
        if not self.unstored:
            yield self
            return
        is_stored = [index not in self.unstored for index in range(len(self.topics))]
        at = stored = 0
        for start, stop in (*rows_with(self.columns, is_stored), (self.count, self.count)):
            if start > at:
                part = self._part(self.topics, self.columns.slice(at, start), at, stored)
                part.has_place = False
                yield part
            if stop > start:
                yield self._part(self.topics, self.columns.slice(start, stop), start, stored)
            stored += stop - start
            at = stop

    def compact(self) -> Batch:
        """Return the batch without the names of topics that have no messages."""
        topics, columns = with_used(self.topics, self.columns)
        return self if topics is self.topics else replace(self, topics=topics, columns=columns)

    def among(self, topics: tuple[str, ...], places: list[int]) -> Batch:
        """Return the batch with more ``topics``; ``places`` has the place there of each own one."""
        unstored = frozenset([places[index] for index in self.unstored])
        return replace(self, topics=topics, columns=self.columns.remap(places), unstored=unstored)

    def by_sender(self, senders: Senders) -> Iterator[Batch]:
        """Yield the messages of each of ``senders`` as a batch."""
        start = 0
        counts, names = senders
        for count, name in zip(memoryview(counts).cast("I"), names, strict=True):
            batch = self.slice(start, start + count)
            batch.sender = name
            yield batch
            start += count

    def _part(self, topics: tuple[str, ...], columns: Columns, start: int, stored: int) -> Batch:
        """Return ``columns``, which are those of the messages from ``start`` on, as a batch.

        As many messages as ``stored`` have offsets before it, if those of this batch have any.
        """
        headers = self.headers
        return Batch(
            topics,
            columns,
            self.timestamp,
            self.sequence + start,
            self.sender,
            self.protocol,
            None if headers is None else headers[start : start + columns.count],
            self.offset + stored if self.has_place else self.offset,
            self.run,
            has_place=self.has_place,
        )

    def within(self, limit: int) -> Batch | None:
        """Return the batch without payloads over ``limit`` bytes; None if that leaves nothing.

        For encoding only: the offsets of the messages that are left are not consecutive.
        """
        columns = self.columns
        if columns.largest <= limit:
            return self
        kept = [place for place, size in enumerate(columns.sizes()) if size <= limit]
        if not kept:
            return None
        payloads, indexes = columns.payloads(), columns.indexes()
        return Batch(
            self.topics,
            Columns.of([payloads[i] for i in kept], [indexes[i] for i in kept]),
            self.timestamp,
            self.sequence,
            self.sender,
            self.protocol,
            None if self.headers is None else [self.headers[i] for i in kept],
            self.offset,
            self.run,
            has_place=self.has_place,
        )


@dataclass(frozen=True, slots=True)
class Page:
    """The result of one read of the history, and the offset from which to read next.

    ``damaged`` has the ranges of offsets (start, stop) that could not be read.
    """

    batches: list[Batch]
    next_offset: int
    damaged: tuple[tuple[int, int], ...] = ()


def message_number(run: int, sequence: int) -> int:
    """Return the id of a message as the 128-bit number of its UUID (see ``message_id``)."""
    return (run >> 12) << 80 | (0x8000 | (run & 0xFFF)) << 64 | 0b10 << 62 | sequence


def message_id(run: int, sequence: int) -> UUID:
    """Return the id of a message: a UUID of version 8 from the broker's run and its sequence.

    ``run`` is a random 60-bit number drawn at start, ``sequence`` is below 2**62. So ids are
    unique, and nothing is drawn or stored for each message.
    """
    return UUID(int=message_number(run, sequence))
