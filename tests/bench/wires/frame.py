"""Where the payload sits in one message on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """The bytes around a payload, the same for all messages of a run.

    `fixed` is how many of the leading bytes are equal in every message; after them the broker may
    write what it likes (a timestamp), as long as the length stays. `answer` is what acknowledges a
    published message, where the protocol has that. All sizes are in bytes. A payload that must be
    ``text`` has its key in hexadecimal digits.
    """

    before: bytes
    payload: int
    after: bytes = b""
    fixed: int = 0
    answer: Frame | None = None
    text: bool = False

    @property
    def size(self) -> int:
        """Of the whole frame."""
        return len(self.before) + self.payload + len(self.after)

    @property
    def offset(self) -> int:
        """Of the payload in the frame."""
        return len(self.before)

    @property
    def head(self) -> bytes:
        """What every frame of the run starts with."""
        return self.before[: self.fixed]
