"""The place of the payload in one message on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """The bytes around a payload, the same for all messages of a run.

    The first `fixed` bytes are equal in every message. The broker may change the bytes between them
    and the payload, such as a timestamp, but not their number. `answer` is the acknowledgment of a
    published message, if the protocol has one. All sizes are in bytes. If the payload must be
    ``text``, its key is in hexadecimal digits.
    """

    before: bytes
    payload: int
    after: bytes = b""
    fixed: int = 0
    answer: Frame | None = None
    text: bool = False

    @property
    def size(self) -> int:
        """Size of the whole frame."""
        return len(self.before) + self.payload + len(self.after)

    @property
    def offset(self) -> int:
        """Offset of the payload in the frame."""
        return len(self.before)

    @property
    def head(self) -> bytes:
        """The first bytes of every frame of the run."""
        return self.before[: self.fixed]
