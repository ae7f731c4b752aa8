"""rheos's path of a message: runs of PUBLISH in, of acknowledgments and responses out.

All that PUBLISH puts before the message (header with client id and opcode, topic, lengths) is its
head, looked up whole; rows of equal heads are cut a block at a time. Acknowledgments of a run
differ in the counter at the end of their ids alone. Nothing here knows Twisted or the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack
from zlib import crc32

from pubsub.broker.message_run import MIXED, MessageRun
from pubsub.protocols.rheos.codec import (
    ACK_MAGIC,
    ACK_SIZE,
    CHECKSUM_SIZE,
    HEADER_SIZE,
    NIL,
    SUCCESS,
    Codec,
    Opcode,
    RheosError,
)
from pubsub.wire.fields import decode_fields
from pubsub.wire.frame_runs import cut_run

# Where a request's topic name starts; its length is just before.
_NAME = HEADER_SIZE + 2
# What a topic's name may have; the codec sees to requests with a longer one.
_MAX_NAME = 255
# Heads that are remembered; then it starts anew.
_KNOWN = 16_384
# What crc32 gives for anything that is followed by its own checksum.
_RESIDUE = 0x2144DF1C
_ACK, _DONE = bytes((ACK_MAGIC,)), bytes((SUCCESS,))
_LOW_BYTES = bytes(range(256))
# Behind the last byte of an id that is not the same for 256 consecutive messages: the code.
_TAILS = [bytes((low, SUCCESS)) for low in _LOW_BYTES]


@dataclass(slots=True)
class Row:
    """Messages in a row from one client id to one topic."""

    client_id: bytes
    topic: bytes
    run: MessageRun


@dataclass(slots=True)
class Head:
    """What stands before a message of ``size`` bytes.

    ``rest`` bytes follow it, the checksum included; ``crc`` is the checksum so far.
    """

    client_id: bytes
    topic: bytes
    size: int
    rest: int
    crc: int


class Scanner:
    """Finds the runs of PUBLISH in what clients of one listener send."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._seal = CHECKSUM_SIZE * codec.checksum
        self._data_length = codec.layout.data_length
        self._heads: dict[bytes, Head] = {}

    def scan(self, data: bytes, at: int) -> tuple[int, list[Row]]:
        """Where the PUBLISH from ``at`` on end, and their rows.

        They end at the end of ``data``, at a request that is not all there, or at one that is not
        a PUBLISH in order: that is for ``Codec.decode``.
        """
        heads, seal, data_length = self._heads, self._seal, self._data_length
        end = len(data)
        if at + _NAME <= end and not seal:
            # A message by itself, as most that come slowly are.
            start = at + _NAME + (data[at + _NAME - 2] | data[at + _NAME - 1] << 8) + data_length
            head = heads.get(data[at:start])
            if head is not None and start + head.rest == end:
                return end, [Row(head.client_id, head.topic, MessageRun([data[start:]], head.size))]
        rows: list[Row] = []
        run = MessageRun([], MIXED)
        before: Head | None = None
        while at + _NAME <= end:
            name_length = data[at + _NAME - 2] | data[at + _NAME - 1] << 8
            start = at + _NAME + name_length + data_length
            key = data[at:start]
            head = heads.get(key) or self._learn(key, name_length)
            if head is None or start + head.rest > end:
                break
            stop = start + head.rest
            found: list[bytes] | None = None
            # A look ahead, as most rows of equal heads are either long or a single frame.
            if seal or data.startswith(key, stop):
                found = cut_run(data, at, key, head.rest)
                if seal:
                    found = _unseal(found, head.crc)
                    if not found:
                        break
            if head is not before:
                if (
                    before is None
                    or before.topic != head.topic
                    or before.client_id != head.client_id
                ):
                    run = MessageRun([], head.size)
                    rows.append(Row(head.client_id, head.topic, run))
                elif run.size != head.size:
                    run.size = MIXED
                before = head
            if found is None:
                run.payloads.append(data[start:stop])
                at = stop
            else:
                run.extend(found)
                at += len(found) * (stop - at)
        return at, rows

    def _learn(self, key: bytes, name_length: int) -> Head | None:
        """Remember the head that ``key`` is; None if it is none, or not all there."""
        codec = self._codec
        name_end = _NAME + name_length
        if len(key) != name_end + codec.layout.data_length or name_length > _MAX_NAME:
            return None
        try:
            whole = codec.needed(key, 0)
        except RheosError:
            return None
        header = decode_fields(codec.layout.header, key[1:HEADER_SIZE])
        if header.opcode != Opcode.PUBLISH or header.client_id == NIL:
            return None
        size = int.from_bytes(key[name_end:], "little")
        rest = size + self._seal
        if whole != len(key) + rest:
            return None
        if len(self._heads) >= _KNOWN:
            self._heads.clear()
        topic = key[_NAME:name_end]
        head = self._heads[key] = Head(header.client_id, topic, size, rest, crc32(key))
        return head


def _unseal(pieces: list[bytes], crc: int) -> list[bytes]:
    """The payloads without their checksums, up to the first that is wrong."""
    payloads = []
    for piece in pieces:
        if crc32(piece, crc) != _RESIDUE:
            break
        payloads.append(piece[:-CHECKSUM_SIZE])
    return payloads


def encode_acks(first: bytes, count: int, checksum: bool) -> bytes:
    """Acknowledgments of ``count`` messages whose ids count up from ``first``, big-endian."""
    if count == 1 and not checksum:
        return _ACK + first + _DONE
    number = int.from_bytes(first, "big")
    pages = []
    while count > 0:
        low = number & 0xFF
        page = min(count, 256 - low)
        pages.append(_ack_page(number.to_bytes(16, "big"), low, page, checksum))
        number += page
        count -= page
    return b"".join(pages)


def _ack_page(first: bytes, low: int, count: int, checksum: bool) -> bytes:
    """As ``encode_acks``, for ids that differ in their last byte alone, which starts at ``low``.

    One acknowledgment is repeated, then what differs is written a column at a time.
    """
    size = ACK_SIZE + CHECKSUM_SIZE * checksum
    ack = bytes((ACK_MAGIC,)) + first + bytes(size - ACK_SIZE + 1)
    acks = bytearray(ack * count)
    acks[16::size] = _LOW_BYTES[low : low + count]
    if checksum:
        crc = crc32(ack[:16])
        crcs = pack(f"<{count}I", *[crc32(tail, crc) for tail in _TAILS[low : low + count]])
        for column in range(CHECKSUM_SIZE):
            acks[ACK_SIZE + column :: size] = crcs[column::CHECKSUM_SIZE]
    return bytes(acks)
