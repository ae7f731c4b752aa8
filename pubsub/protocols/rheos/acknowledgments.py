"""rheos: the answers to what came in one read, in order (rheos §5.3)."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING
from zlib import crc32

from pubsub.broker.batch import message_number
from pubsub.protocols.rheos.codec import ACK_MAGIC, ACK_SIZE, CHECKSUM_SIZE, SUCCESS

if TYPE_CHECKING:
    from pubsub.protocols.rheos.codec import Codec


_ACK, _DONE = bytes((ACK_MAGIC,)), bytes((SUCCESS,))
_LOW_BYTES = bytes(range(256))
# Behind the last byte of an id that is the same for 256 consecutive messages but for it: the code.
_TAILS = [bytes((low, SUCCESS)) for low in _LOW_BYTES]


class Replies:
    """Gathers answers. Those to messages that the broker numbered in a row are made together, as
    a client that goes from topic to topic has runs of a single message.

    ``run_id`` is the broker's, of which message ids are made.
    """

    __slots__ = ("_answers", "_codec", "_failed", "_first", "_next", "_run_id", "_sync", "waits")

    def __init__(self, codec: Codec, run_id: int) -> None:
        self._codec = codec
        self._run_id = run_id
        self._answers: list[bytes] = []
        self._failed: list[bytes] = []
        self._first = self._next = -1
        self._sync = False
        self.waits = False
        """Does an answer depend on what was published being stored?"""

    def __bool__(self) -> bool:
        return bool(self._answers) or self._next >= 0

    def add(self, answer: bytes, failed: bytes | None = None) -> None:
        """Answer a request, with ``failed`` instead if it cannot be stored as it has to be."""
        self._close()
        self.waits = self.waits or failed is not None
        self._append(answer, answer if failed is None else failed)

    def accepted(self, sequence: int, count: int, sync: bool) -> None:
        """Acknowledge ``count`` messages, numbered from ``sequence`` on."""
        if sequence != self._next or sync != self._sync:
            self._close()
            self._first, self._sync = sequence, sync
            self.waits = self.waits or sync
        self._next = sequence + count

    def refused(self, count: int = 1) -> None:
        """Answer ``count`` requests with FAILED."""
        self.add(self._codec.failed * count)

    def take(self) -> tuple[bytes, bytes]:
        """All answers, and all there are instead if nothing can be stored."""
        if not self._answers:
            return self._acks()
        self._close()
        return b"".join(self._answers), b"".join(self._failed)

    def _close(self) -> None:
        if self._next >= 0:
            self._append(*self._acks())

    def _acks(self) -> tuple[bytes, bytes]:
        count = self._next - self._first
        first = message_number(self._run_id, self._first).to_bytes(16, "big")
        self._next = -1
        answer = encode_acks(first, count, self._codec.checksum)
        return answer, self._codec.failed * count if self._sync else answer

    def _append(self, answer: bytes, failed: bytes) -> None:
        self._answers.append(answer)
        self._failed.append(failed)


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
