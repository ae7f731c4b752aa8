"""rheos: the answers to what came in one read, in order (rheos §5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.batch import message_number
from pubsub.protocols.rheos.scan import encode_acks

if TYPE_CHECKING:
    from pubsub.protocols.rheos.codec import Codec


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
