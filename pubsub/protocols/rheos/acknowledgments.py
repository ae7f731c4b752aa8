"""rheos replies to the requests of one read, in order (rheos §5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.batch import message_number
from pubsub.protocols.rheos.scan import encode_acks

if TYPE_CHECKING:
    from pubsub.protocols.rheos.codec import Codec


class Replies:
    """Collects replies. Acknowledgments of messages with consecutive numbers are encoded together,
    because a client that alternates between topics has runs of a single message.

    ``run_id`` is that of the broker, from which message ids are made. ``waits`` is True if a reply
    depends on a message being stored.
    """

    __slots__ = ("_codec", "_failed", "_first", "_next", "_replies", "_run_id", "_sync", "waits")

    def __init__(self, codec: Codec, run_id: int) -> None:
        self._codec = codec
        self._run_id = run_id
        self._replies: list[bytes] = []
        self._failed: list[bytes] = []
        self._first = self._next = -1
        self._sync = False
        self.waits = False

    def __bool__(self) -> bool:
        return bool(self._replies) or self._next >= 0

    def add(self, reply: bytes, failed: bytes | None = None) -> None:
        """Reply to a request, with ``failed`` instead if the store fails."""
        self._encode_acks()
        self.waits = self.waits or failed is not None
        self._append(reply, reply if failed is None else failed)

    def accepted(self, sequence: int, count: int, sync: bool) -> None:
        """Acknowledge ``count`` messages with numbers from ``sequence`` on."""
        if sequence != self._next or sync != self._sync:
            self._encode_acks()
            self._first, self._sync = sequence, sync
            self.waits = self.waits or sync
        self._next = sequence + count

    def refused(self, count: int = 1) -> None:
        """Reply to ``count`` requests with FAILED."""
        self.add(self._codec.failed * count)

    def take(self) -> tuple[bytes, bytes]:
        """Return all replies, and the replies if the store fails."""
        if not self._replies:
            return self._acks()
        self._encode_acks()
        return b"".join(self._replies), b"".join(self._failed)

    def _encode_acks(self) -> None:
        if self._next >= 0:
            self._append(*self._acks())

    def _acks(self) -> tuple[bytes, bytes]:
        count = self._next - self._first
        first = message_number(self._run_id, self._first).to_bytes(16, "big")
        self._next = -1
        reply = encode_acks(first, count, self._codec.checksum)
        return reply, self._codec.failed * count if self._sync else reply

    def _append(self, reply: bytes, failed: bytes) -> None:
        self._replies.append(reply)
        self._failed.append(failed)
