"""rheos replies to the requests of one read, in order (rheos §5.3)."""

from __future__ import annotations

from functools import partial
from struct import pack
from typing import TYPE_CHECKING
from zlib import crc32

from pubsub.broker.routing.batch import message_number
from pubsub.broker.topic_space.durability import Durability
from pubsub.protocols.rheos.codec import ACK_MAGIC, ACK_SIZE, CHECKSUM_SIZE, FAILED, SUCCESS

if TYPE_CHECKING:
    from pubsub.broker.topic_space.topics import Topic, Upstream
    from pubsub.protocols.rheos.codec import Codec
    from pubsub.wire.replies import FailedReply


_ACK = bytes((ACK_MAGIC,))
_LOW_BYTES = bytes(range(256))
# Behind the last byte of an id that is the same for 256 consecutive messages but for it: the code.
_TAILS = {code: [bytes((low, code)) for low in _LOW_BYTES] for code in (SUCCESS, FAILED)}


class Acks:
    """Collects replies. Acks of messages with consecutive numbers are encoded together,
    because a client that alternates between topics has runs of a single message.

    ``run_id`` is that of the broker, from which message ids are made. ``durability`` is the largest
    of the requests: how the messages have to be stored before the replies are sent. ``remote`` has
    a topic of each other broker that has to confirm messages before.
    """

    __slots__ = (
        "_codec", "_failed", "_first", "_next", "_replies", "_run_id", "_waits", "durability",
        "remote",
    )  # fmt: skip

    def __init__(self, codec: Codec, run_id: int) -> None:
        self._codec = codec
        self._run_id = run_id
        self._replies: list[bytes] = []
        self._failed: list[bytes] = []
        self._first = self._next = -1
        self._waits = False
        self.durability = Durability.NONE
        self.remote: dict[Upstream, Topic] = {}

    def __bool__(self) -> bool:
        return bool(self._replies) or self._next >= 0

    def add(self, reply: bytes, durability: Durability = Durability.NONE) -> None:
        """Reply to a request, with FAILED instead if the store fails and durability matters."""
        self._encode_acks()
        self.durability = max(self.durability, durability)
        self._append(reply, self._codec.failed if durability else reply)

    def accepted(self, sequence: int, count: int, durability: Durability) -> None:
        """Acknowledge ``count`` messages with numbers from ``sequence`` on."""
        if durability > self.durability:
            self.durability = durability
        self._add(sequence, count, waits=durability > Durability.NONE)

    def forwarded(self, sequence: int, count: int, topic: Topic, host: Upstream) -> None:
        """Acknowledge messages that ``host``, the host of ``topic``, has to confirm."""
        self.remote[host] = topic
        self._add(sequence, count, waits=True)

    def _add(self, sequence: int, count: int, waits: bool) -> None:
        if sequence != self._next or waits is not self._waits:
            self._encode_acks()
            self._first, self._waits = sequence, waits
        self._next = sequence + count

    def refused(self, count: int = 1) -> None:
        """Reply to ``count`` requests with FAILED."""
        self.add(self._codec.failed * count)

    def take(self) -> tuple[bytes, FailedReply]:
        """Return all replies, and the replies if the store fails."""
        if not self._replies:
            return self._acks()
        self._encode_acks()
        return b"".join(self._replies), b"".join(self._failed)

    def _encode_acks(self) -> None:
        if self._next >= 0:
            reply, failed = self._acks()
            # Of many runs, calls would take more memory than what they return.
            self._append(reply, failed if isinstance(failed, bytes) else failed())

    def _acks(self) -> tuple[bytes, FailedReply]:
        count = self._next - self._first
        first = message_number(self._run_id, self._first).to_bytes(16, "big")
        self._next = -1
        reply = encode_acks(first, count, self._codec.checksum)
        if not self._waits:
            return reply, reply
        # With the ids: the messages may be published nevertheless (rheos §3.2).
        return reply, partial(encode_acks, first, count, self._codec.checksum, FAILED)

    def _append(self, reply: bytes, failed: bytes) -> None:
        self._replies.append(reply)
        self._failed.append(failed)


def encode_acks(first: bytes, count: int, checksum: bool, code: int = SUCCESS) -> bytes:
    """Acks of ``count`` messages whose ids count up from ``first``, big-endian."""
    if count == 1 and not checksum:
        return _ACK + first + bytes((code,))
    number = int.from_bytes(first, "big")
    pages = []
    while count > 0:
        low = number & 0xFF
        page = min(count, 256 - low)
        pages.append(_ack_page(number.to_bytes(16, "big"), low, page, checksum, code))
        number += page
        count -= page
    return b"".join(pages)


def _ack_page(first: bytes, low: int, count: int, checksum: bool, code: int) -> bytes:
    """As ``encode_acks``, for ids that differ in their last byte alone, which starts at ``low``.

    One acknowledgment is repeated, then the differing bytes are written a column at a time.
    """
    size = ACK_SIZE + CHECKSUM_SIZE * checksum
    ack = _ACK + first + bytes((code,)) + bytes(size - ACK_SIZE)
    acks = bytearray(ack * count)
    acks[16::size] = _LOW_BYTES[low : low + count]
    if checksum:
        crc = crc32(ack[:16])
        crcs = pack(f"<{count}I", *[crc32(tail, crc) for tail in _TAILS[code][low : low + count]])
        for column in range(CHECKSUM_SIZE):
            acks[ACK_SIZE + column :: size] = crcs[column::CHECKSUM_SIZE]
    return bytes(acks)
