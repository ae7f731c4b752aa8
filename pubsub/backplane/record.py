"""Records: the messages that one read brought for one topic, as they cross the engine. Sans-IO.

A record is a head and columns, all little-endian:

    read u64, count u32, size u32, sender length u8, protocol length u8, flags u8, reserved u8
    protocol        UTF-8
    sender
    proof           32 bytes if flags has 1: of the topic's queue key (``QueueKeys.proof``)
    positions       u32 for each message if flags has 2: its place in the read
    sizes           u32 for each message if size is 0xFFFFFFFF, otherwise all have ``size`` bytes
    headers         if flags has 4: their length (u32), and for each message the number of its
                    headers (u16) and the keys (UTF-8) and values, each after its length (u32)
    payloads        joined

The messages of one read that belong to several topics are a record for each topic. ``read`` is the
same in these, and different in all others of the broker's connection to the engine.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch, Headers

PROOF_BYTES = 32
_HEAD = struct.Struct("<QIIBBBx")
RECORD_COUNT = struct.Struct("<8xI")
"""The beginning of a record, up to its number of messages."""
_U16, _U32 = struct.Struct("<H"), struct.Struct("<I")
_MIXED = 0xFFFFFFFF
_PROOF, _POSITIONS, _HEADERS = 1, 2, 4


class MalformedRecord(Exception):
    """Bytes that are not a record."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """The messages of one topic; ``positions`` is None if the read had no other topic."""

    read: int
    sender: bytes
    protocol: str
    proof: bytes
    columns: Columns
    positions: Sequence[int] | None = None
    headers: Sequence[Headers] | None = None


def encode_batch(
    batch: Batch, read: int, proofs: Sequence[bytes | None]
) -> Iterator[tuple[int, int, bytes]]:
    """Yield the index, the number of messages and the record of each topic of ``batch``.

    ``proofs`` has the proof of each topic, empty for one without a key; the messages of a topic
    whose proof is None are left out.
    """
    if len(batch.topics) == 1:
        if proofs[0] is not None:
            columns = batch.columns
            yield 0, columns.count, _encode(batch, read, proofs[0], columns, None, batch.headers)
        return
    payloads = batch.columns.payloads()
    places: dict[int, list[int]] = {}
    for place, index in enumerate(batch.columns.indexes()):
        places.setdefault(index, []).append(place)
    for index, own in places.items():
        proof = proofs[index]
        if proof is not None:
            columns = Columns.of([payloads[place] for place in own])
            headers = None if batch.headers is None else [batch.headers[place] for place in own]
            yield index, len(own), _encode(batch, read, proof, columns, own, headers)


def _encode(
    batch: Batch,
    read: int,
    proof: bytes,
    columns: Columns,
    positions: Sequence[int] | None,
    headers: Sequence[Headers] | None,
) -> bytes:
    data, sizes, _ = columns.pack()
    equal = columns.smallest == columns.largest and columns.largest > 0
    protocol = batch.protocol.encode()
    flags = (_PROOF if proof else 0) | (0 if positions is None else _POSITIONS)
    flags |= 0 if headers is None else _HEADERS
    size = columns.largest if equal else _MIXED
    parts = [
        _HEAD.pack(read, columns.count, size, len(batch.sender), len(protocol), flags),
        protocol,
        batch.sender,
        proof,
    ]
    if positions is not None:
        parts.append(_little_endian(array("I", positions)))
    if not equal:
        parts.append(_little_endian(array("I", sizes)))
    if headers is not None:
        packed = b"".join(map(_encode_headers, headers))
        parts += (_U32.pack(len(packed)), packed)
    return b"".join([*parts, data])


def joined(columns: Sequence[Columns]) -> Columns:
    """Return the messages of all of ``columns``, which have one topic, in one."""
    packed = [one.pack() for one in columns]
    data, sizes = (b"".join([one[place] for one in packed]) for place in (0, 1))
    return Columns.unpack(data, sizes, b"")


def _encode_headers(headers: Headers) -> bytes:
    parts = [_U16.pack(len(headers))]
    for key, value in headers.items():
        text = key.encode()
        parts += (_U32.pack(len(text)), text, _U32.pack(len(value)), value)
    return b"".join(parts)


def _little_endian(words: array[int]) -> bytes:
    if sys.byteorder != "little":
        words.byteswap()
    return words.tobytes()


class _FieldReader:
    """Takes bytes from the front; raises MalformedRecord where there are too few."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, number: int) -> bytes:
        start, self._at = self._at, self._at + number
        if self._at > len(self._data):
            raise MalformedRecord("the record is cut off")
        return self._data[start : self._at]

    def words(self, count: int) -> array[int]:
        words = array("I", self.take(4 * count))
        if sys.byteorder != "little":
            words.byteswap()
        return words

    def number(self, kind: struct.Struct) -> int:
        (number,) = kind.unpack(self.take(kind.size))
        return int(number)

    def text(self, number: int) -> str:
        try:
            return self.take(number).decode()
        except UnicodeDecodeError:
            raise MalformedRecord("a text is not UTF-8") from None

    def rest(self) -> bytes:
        return self._data[self._at :]


def decode(data: bytes) -> TopicRecord:
    """Return the record; raises MalformedRecord. The work is bounded by the length of ``data``."""
    reader = _FieldReader(data)
    read, count, size, sender_size, protocol_size, flags = _HEAD.unpack(reader.take(_HEAD.size))
    if not count or not size or flags & ~(_PROOF | _POSITIONS | _HEADERS):
        raise MalformedRecord("the head is invalid")
    protocol = reader.text(protocol_size)
    sender = reader.take(sender_size)
    proof = reader.take(PROOF_BYTES) if flags & _PROOF else b""
    positions = reader.words(count) if flags & _POSITIONS else None
    sizes = reader.words(count) if size == _MIXED else None
    headers = _decode_headers(reader, count) if flags & _HEADERS else None
    payloads = reader.rest()
    try:
        if sizes is None:
            columns = Columns.equal(payloads, size, count)
        else:
            columns = Columns.unpack(payloads, sizes.tobytes(), b"")
    except ValueError as error:
        raise MalformedRecord(str(error)) from None
    return TopicRecord(read, sender, protocol, proof, columns, positions, headers)


def _decode_headers(reader: _FieldReader, count: int) -> Sequence[Headers]:
    inner = _FieldReader(reader.take(reader.number(_U32)))
    found: list[Headers] = []
    for _ in range(count):
        own: dict[str, bytes] = {}
        for _ in range(inner.number(_U16)):
            key = inner.text(inner.number(_U32))
            own[key] = inner.take(inner.number(_U32))
        found.append(own)
    if inner.rest():
        raise MalformedRecord("bytes follow the headers")
    return found
