"""Replica records: stored messages of one broker, as the engine carries them to others. Sans-IO.

A record is the messages that one run of a broker has numbered, of all topics and in their order. It
is sent in one part, or in several if a message is larger than the engine's messages may be. The
parts of an *origin*, the history of one broker, are numbered from 1 within a *term*; the first of
a term has no messages. A part is a head, little-endian, and a piece of the record:

    magic "PH", version u8 (1), reserved u8, checksum u32 (CRC-32 of all that follows),
    term u64, number u64, run u64, place u16, parts u16

A record is the sizes of its columns, seven u32, the largest first message's end u32, the timestamps
of the first and of the last message (i64, µs), the columns of a block (docs/history-format.md):
names, runs, lists, picks, lengths and headers, then *keyed*: the names of those of its topics that
have a queue key at the origin, each counted; and the payloads.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from zlib_ng.zlib_ng import crc32

from pubsub.backplane.messages.record import MalformedRecord
from pubsub.broker.routing.batch import Batch
from pubsub.store.records.block import Block, decode_block, encode_block
from pubsub.store.records.block_columns import HAS_HEADERS, RUN, decode_names, encode_names
from pubsub.store.records.stored_runs import record_of

_HEAD = struct.Struct("<2sBxIQQQHH")
_BODY_AT = 8
_COLUMNS = struct.Struct("<7IIqq")
_MAGIC, _VERSION = b"PH", 1
MAX_PARTS = 0xFFFF
MAX_MESSAGES = 0xFFFF
"""Messages of a record; ``cut`` makes fewer."""
# Bytes that a message may take beside its payload, its sender and its headers.
_MESSAGE, _BATCH = 12, 512


@dataclass(frozen=True, slots=True)
class RecordPart:
    """A part of a record; ``data`` is its piece."""

    term: int
    number: int
    run: int
    place: int
    parts: int
    data: bytes

    def encode(self) -> bytes:
        """Return the part as it is sent."""
        fields = (self.term, self.number, self.run, self.place, self.parts)
        head = _HEAD.pack(_MAGIC, _VERSION, 0, *fields)
        crc = crc32(self.data, crc32(head[_BODY_AT:]))
        return _HEAD.pack(_MAGIC, _VERSION, crc, *fields) + self.data


def decode_part(data: bytes) -> RecordPart:
    """Return the part; raises MalformedRecord."""
    if len(data) < _HEAD.size:
        raise MalformedRecord("the head is cut off")
    magic, version, crc, term, number, run, place, parts = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise MalformedRecord("it is of another version")
    if crc32(data[_BODY_AT:]) != crc:
        raise MalformedRecord("the checksum is wrong")
    part = RecordPart(term, number, run, place, parts, data[_HEAD.size :])
    if not part.number or part.place >= part.parts:
        raise MalformedRecord("the head is invalid")
    return part


def parts_of(record: bytes, limit: int) -> list[bytes]:
    """Return ``record`` in pieces for parts of at most ``limit`` bytes."""
    room = limit - _HEAD.size
    return [record[at : at + room] for at in range(0, len(record), room)]


def cut(batch: Batch, room: int) -> Iterator[Batch]:
    """Yield the messages of ``batch`` in batches of about ``room`` bytes, or of one message."""
    if batch.count == 1 or nbytes_of(batch) <= room:
        yield batch
        return
    half = batch.count // 2
    yield from cut(batch.slice(0, half), room)
    yield from cut(batch.slice(half, batch.count), room)


def nbytes_of(batch: Batch) -> int:
    """Return about how many bytes ``batch`` takes in a record."""
    nbytes = batch.nbytes + _MESSAGE * batch.count + _BATCH + sum(map(len, batch.topics))
    if batch.headers is not None:
        nbytes += sum([sum([len(k) * 4 + len(v) + 8 for k, v in h.items()]) for h in batch.headers])
    return nbytes


def encode_batches(batches: Sequence[Batch], keyed: Collection[str]) -> bytes:
    """Return the record of ``batches``; ``keyed`` are topics that have a queue key."""
    runs, at = [], 0
    for batch in batches:
        runs.append(record_of(replace(batch, offset=at)))
        at += batch.count
    block = encode_block(runs, 0, 0, at)
    names = encode_names([name.encode() for name in keyed])
    columns = (
        block.names, block.runs, block.lists, block.picks, block.lengths, block.headers, names,
    )  # fmt: skip
    head = _COLUMNS.pack(*map(len, columns), at, block.first, block.last)
    return b"".join((head, *columns, block.payloads))


def decode_batches(record: bytes, run: int) -> tuple[list[Batch], frozenset[str]]:
    """Return the batches of a record, and its topics with keys; raises MalformedRecord."""
    try:
        *sizes, count, first, last = _COLUMNS.unpack_from(record)
        columns, at = [], _COLUMNS.size
        for size in sizes:
            columns.append(record[at : at + size])
            at += size
        names, runs, lists, picks, lengths, headers, keyed = columns
        counts = [one[1] & ~HAS_HEADERS for one in RUN.iter_unpack(runs)]
        # Before anything is made of them, as a few bytes can stand for very many messages.
        if not 0 < count <= MAX_MESSAGES or sum(counts) != count:
            raise ValueError("the number of messages is wrong")
        block = Block(
            0, count, first, last, run, names, runs, lengths, headers, memoryview(record)[at:],
            lists, picks,
        )  # fmt: skip
        batches = [replace(found.batch(), run=run) for found in decode_block(block)]
        if not all(map(_has_topics, batches)):
            raise ValueError("a message has no topic")
        topics = frozenset(name.decode() for name in decode_names(keyed))
    except (ValueError, LookupError, OverflowError, RuntimeError, struct.error) as error:
        raise MalformedRecord(str(error)) from None
    return batches, topics


def _has_topics(batch: Batch) -> bool:
    if len(batch.topics) == 1:
        return True
    return max(batch.columns.indexes()) < len(batch.topics)
