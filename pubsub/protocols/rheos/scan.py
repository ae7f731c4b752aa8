"""rheos's path of a message: runs of PUBLISH in, of acknowledgments and responses out.

All that PUBLISH puts before the message (header with client id and opcode, topic, lengths) is its
head, looked up whole; rows of equal heads are cut a block at a time. Acknowledgments of a run
differ in the counter at the end of their ids alone. Nothing here knows Twisted or the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack
from zlib import crc32

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
from pubsub.wire.runs import MIXED, cut_run

# What a topic's name may have; the codec sees to requests with a longer one.
_MAX_NAME = 255
# Heads that are remembered; then it starts anew.
_KNOWN = 4096
# What crc32 gives for anything that is followed by its own checksum.
_RESIDUE = 0x2144DF1C
_LOW_BYTES = bytes(range(256))
# Behind the last byte of an id that is not the same for 256 consecutive messages: the code.
_TAILS = [bytes((low, SUCCESS)) for low in _LOW_BYTES]


@dataclass(frozen=True, slots=True)
class Run:
    """Messages in a row from one client id to one topic: ``size`` each, or MIXED."""

    client_id: bytes
    topic: bytes
    payloads: list[bytes]
    nbytes: int
    size: int


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the message: ``size`` bytes follow, then maybe a checksum.

    ``address`` is the client id and the topic, ``crc`` the checksum so far.
    """

    data: bytes
    address: tuple[bytes, bytes]
    size: int
    crc: int


class Scanner:
    """Finds the runs of PUBLISH in what clients of one listener send."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._seal = CHECKSUM_SIZE * codec.checksum
        # The topic's name starts here; its length is just before it.
        self._name = HEADER_SIZE + 2
        self._heads: dict[bytes, Head] = {}

    def scan(self, data: bytes, at: int) -> tuple[int, list[Run]]:
        """The runs of PUBLISH from ``at`` on, and where they end.

        They end at the end of ``data``, at a request that is not all there, or at one that is not
        a PUBLISH in order: that is for ``Codec.decode``.
        """
        runs: list[Run] = []
        address: tuple[bytes, bytes] | None = None
        payloads: list[bytes] = []
        nbytes = 0
        size = MIXED
        while (head := self._head(data, at)) is not None:
            found = self._row(data, at, head)
            if not found:
                break
            if head.address != address:
                if address is not None:
                    runs.append(Run(*address, payloads, nbytes, size))
                address, payloads, nbytes, size = head.address, found, 0, head.size
            else:
                payloads += found
                if size != head.size:
                    size = MIXED
            nbytes += len(found) * head.size
            at += len(found) * (len(head.data) + head.size + self._seal)
        if address is not None:
            runs.append(Run(*address, payloads, nbytes, size))
        return at, runs

    def _head(self, data: bytes, at: int) -> Head | None:
        """The head at ``at``, if it is that of a PUBLISH."""
        name = at + self._name
        if name > len(data):
            return None
        length = data[name - 2] | data[name - 1] << 8
        head = data[at : name + length + self._codec.layout.data_length]
        return self._heads.get(head) or self._learn(head, length)

    def _learn(self, data: bytes, name_length: int) -> Head | None:
        """Remember a head; None if it is none, or not all there."""
        codec = self._codec
        name, after = self._name, self._name + name_length
        if len(data) != after + codec.layout.data_length or name_length > _MAX_NAME:
            return None
        try:
            whole = codec.needed(data, 0)
        except RheosError:
            return None
        header = decode_fields(codec.layout.header, data[1:HEADER_SIZE])
        size = int.from_bytes(data[after:], "little")
        if header.opcode != Opcode.PUBLISH or header.client_id == NIL:
            return None
        if whole != len(data) + size + self._seal:
            return None
        if len(self._heads) >= _KNOWN:
            self._heads.clear()
        head = Head(data, (header.client_id, data[name:after]), size, crc32(data))
        self._heads[data] = head
        return head

    def _row(self, data: bytes, at: int, head: Head) -> list[bytes]:
        """The payloads of the frames with this head that stand in a row at ``at``."""
        start = at + len(head.data)
        length = head.size + self._seal
        stop = start + length
        if stop > len(data):
            return []
        # A look ahead, as most rows are either long or of one frame.
        if data.startswith(head.data, stop):
            pieces = cut_run(data, at, head.data, length)
        else:
            pieces = [data[start:stop]]
        return _unseal(pieces, head.crc) if self._seal else pieces


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
