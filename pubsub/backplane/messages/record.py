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
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch, Headers

PROOF_BYTES = 32
_HEAD = struct.Struct("<QIIBBBx")
RECORD_COUNT = struct.Struct("<8xI")
"""The beginning of a record, up to its number of messages."""
_U16, _U32 = struct.Struct("<H"), struct.Struct("<I")
_MIXED = 0xFFFFFFFF
_PROOF, _POSITIONS, _HEADERS = 1, 2, 4


class MalformedRecord(Exception):
    """Bytes that are not a record."""


class TopicRecord(NamedTuple):
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
) -> list[tuple[int, bytes, Columns]]:
    """Return the index and the record of each topic of ``batch``.

    A record is what precedes the payloads, and these. ``proofs`` has the proof of each topic, empty
    for one without a key; the messages of a topic whose proof is None are left out.
    """
    columns = batch.columns
    if len(batch.topics) == 1:
        if proofs[0] is None:
            return []
        return [(0, _head_of(batch, read, proofs[0], columns, None, batch.headers), columns)]
    payloads = columns.payloads()
    places: dict[int, list[int]] = {}
    for place, index in enumerate(columns.indexes()):
        places.setdefault(index, []).append(place)
    found = []
    for index, own in places.items():
        proof = proofs[index]
        if proof is not None:
            columns = Columns.gather([payloads[place] for place in own])
            headers = None if batch.headers is None else [batch.headers[place] for place in own]
            found.append((index, _head_of(batch, read, proof, columns, own, headers), columns))
    return found


def _head_of(
    batch: Batch,
    read: int,
    proof: bytes,
    columns: Columns,
    positions: Sequence[int] | None,
    headers: Sequence[Headers] | None,
) -> bytes:
    """Return what precedes the payloads of ``columns``."""
    size = columns.largest if columns.smallest == columns.largest else 0
    protocol = batch.protocol.encode()
    flags = (_PROOF if proof else 0) | (0 if positions is None else _POSITIONS)
    flags |= 0 if headers is None else _HEADERS
    sender = batch.sender
    head = _HEAD.pack(read, columns.count, size or _MIXED, len(sender), len(protocol), flags)
    head += protocol + sender + proof
    if positions is not None:
        head += _little_endian(array("I", positions))
    if not size:
        head += _little_endian(array("I", columns.words()))
    if headers is not None:
        packed = b"".join(map(_encode_headers, headers))
        head += _U32.pack(len(packed)) + packed
    return head


def joined(columns: Sequence[Columns]) -> Columns:
    """Return the messages of all of ``columns``, which have one topic, in one."""
    data = Columns.joined([*columns])
    size = columns[0].largest
    if all(one.smallest == one.largest == size for one in columns):
        return Columns.equal(data, size, sum([one.count for one in columns]))
    return Columns.unpack(data, b"".join([one.words() for one in columns]), b"")


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

    def __init__(self, data: bytes, at: int, stop: int) -> None:
        self._data = data
        self.at = at
        self._stop = stop

    def skip(self, number: int) -> int:
        """Return where the next bytes begin, of which this number is taken."""
        start, self.at = self.at, self.at + number
        if self.at > self._stop:
            raise MalformedRecord("the record is cut off")
        return start

    def take(self, number: int) -> bytes:
        start = self.skip(number)
        return self._data[start : self.at]

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


def decode(data: bytes, at: int = 0, stop: int | None = None) -> TopicRecord:
    """Return the record ``data[at:stop]``, whose payloads stay where they are.

    Raises MalformedRecord. The work is bounded by the length of the record.
    """
    stop = len(data) if stop is None else stop
    reader = _FieldReader(data, at, stop)
    head = _HEAD.unpack_from(data, reader.skip(_HEAD.size))
    read, count, size, sender_size, protocol_size, flags = head
    if not count or not size or flags & ~(_PROOF | _POSITIONS | _HEADERS):
        raise MalformedRecord("the head is invalid")
    named = reader.skip(protocol_size + sender_size)
    sender = data[named + protocol_size : reader.at]
    try:
        protocol = data[named : named + protocol_size].decode()
    except UnicodeDecodeError:
        raise MalformedRecord("a text is not UTF-8") from None
    proof = reader.take(PROOF_BYTES) if flags & _PROOF else b""
    positions = reader.words(count) if flags & _POSITIONS else None
    sizes = reader.words(count) if size == _MIXED else None
    headers = _decode_headers(reader, count) if flags & _HEADERS else None
    try:
        if sizes is None:
            columns = Columns.equal(data, size, count, reader.at, stop)
        else:
            columns = Columns.unpack(data, sizes.tobytes(), b"", reader.at, stop)
    except ValueError as error:
        raise MalformedRecord(str(error)) from None
    return TopicRecord(read, sender, protocol, proof, columns, positions, headers)


def _decode_headers(reader: _FieldReader, count: int) -> Sequence[Headers]:
    packed = reader.take(reader.number(_U32))
    inner = _FieldReader(packed, 0, len(packed))
    found: list[Headers] = []
    for _ in range(count):
        own: dict[str, bytes] = {}
        for _ in range(inner.number(_U16)):
            key = inner.text(inner.number(_U32))
            own[key] = inner.take(inner.number(_U32))
        found.append(own)
    if inner.at != len(packed):
        raise MalformedRecord("bytes follow the headers")
    return found
