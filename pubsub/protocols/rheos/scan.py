"""Runs of PUBLISH, acknowledgments and responses, without a step for each message.

Everything that PUBLISH has before the message (the header with client id and opcode, the topic, the
lengths) is its head and is looked up as a whole; frames with equal heads are split a block at a
time. The acknowledgments of a run differ only in the counter at the end of their ids. This module
knows neither Twisted nor the broker.
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

# Position of the topic's name in a request, after its length.
_NAME = HEADER_SIZE + 2
# Bytes of a topic's name; the codec handles requests with a longer one.
_MAX_NAME = 255
# Heads that are cached; the cache is then cleared.
_CACHED_HEADS = 16_384
# The crc32 of any data followed by its own checksum.
_RESIDUE = 0x2144DF1C
_ACK, _DONE = bytes((ACK_MAGIC,)), bytes((SUCCESS,))
_LOW_BYTES = bytes(range(256))
# The last byte of an id, and the code after it, for 256 consecutive messages.
_TAILS = [bytes((low, SUCCESS)) for low in _LOW_BYTES]


@dataclass(slots=True)
class ClientRun:
    """Consecutive messages from one client id to one topic."""

    client_id: bytes
    topic: bytes
    run: MessageRun


@dataclass(slots=True)
class Head:
    """The parsed head of a message of ``size`` bytes.

    ``following`` bytes come after the head, including the checksum; ``crc`` is the checksum of the
    head.
    """

    client_id: bytes
    topic: bytes
    size: int
    following: int
    crc: int


class Scanner:
    """Finds runs of PUBLISH in the input of one listener's clients."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._checksum_size = CHECKSUM_SIZE * codec.checksum
        self._data_length = codec.layout.data_length
        self._heads: dict[bytes, Head] = {}

    def scan(self, data: bytes, at: int) -> tuple[int, list[ClientRun]]:
        """Return the runs of PUBLISH from ``at`` on, and the position after them.

        That is the end of ``data``, an incomplete request, or one that is not a valid PUBLISH,
        which ``Codec.decode`` handles.
        """
        heads, checksum_size, data_length = self._heads, self._checksum_size, self._data_length
        end = len(data)
        if at + _NAME <= end and not checksum_size:
            # A single message, as in most reads of a slow stream.
            start = at + _NAME + (data[at + _NAME - 2] | data[at + _NAME - 1] << 8) + data_length
            head = heads.get(data[at:start])
            if head is not None and start + head.following == end:
                run = MessageRun([data[start:]], head.size)
                return end, [ClientRun(head.client_id, head.topic, run)]
        rows: list[ClientRun] = []
        run = MessageRun([], MIXED)
        before: Head | None = None
        while at + _NAME <= end:
            name_length = data[at + _NAME - 2] | data[at + _NAME - 1] << 8
            start = at + _NAME + name_length + data_length
            key = data[at:start]
            head = heads.get(key) or self._parse_head(key, name_length)
            if head is None or start + head.following > end:
                break
            stop = start + head.following
            found: list[bytes] | None = None
            # Look ahead, because most runs of equal heads are either long or a single frame.
            if checksum_size or data.startswith(key, stop):
                found = cut_run(data, at, key, head.following)
                if checksum_size:
                    found = _strip_checksums(found, head.crc)
                    if not found:
                        break
            if head is not before:
                if (
                    before is None
                    or before.topic != head.topic
                    or before.client_id != head.client_id
                ):
                    run = MessageRun([], head.size)
                    rows.append(ClientRun(head.client_id, head.topic, run))
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

    def _parse_head(self, key: bytes, name_length: int) -> Head | None:
        """Parse and cache a head; None if it is incomplete or not that of a valid PUBLISH."""
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
        following = size + self._checksum_size
        if whole != len(key) + following:
            return None
        if len(self._heads) >= _CACHED_HEADS:
            self._heads.clear()
        topic = key[_NAME:name_end]
        head = self._heads[key] = Head(header.client_id, topic, size, following, crc32(key))
        return head


def _strip_checksums(pieces: list[bytes], crc: int) -> list[bytes]:
    """Return the payloads without their checksums, up to the first wrong one."""
    payloads = []
    for piece in pieces:
        if crc32(piece, crc) != _RESIDUE:
            break
        payloads.append(piece[:-CHECKSUM_SIZE])
    return payloads


def encode_acks(first: bytes, count: int, checksum: bool) -> bytes:
    """Return acknowledgments of ``count`` messages with ids from ``first`` on, big-endian."""
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
    """Do as ``encode_acks`` for ids that differ only in their last byte, which starts at ``low``.

    One acknowledgment is repeated, then the bytes that differ are written a column at a time.
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
