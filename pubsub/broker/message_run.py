"""``MessageRun``: consecutive messages of one topic in one read, before they become a batch.

Codecs make runs and ``Publisher.publish`` takes them. The module is on the path of a message and is
compiled with the codecs (see ``hatch_build.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

MIXED = -1
"""The size of a run or batch whose payloads differ in length."""


@dataclass(slots=True)
class MessageRun:
    """Consecutive messages of one publisher to one topic, of ``size`` bytes each or MIXED."""

    payloads: list[bytes]
    size: int

    @classmethod
    def of(cls, payloads: list[bytes]) -> MessageRun:
        """Return a run of ``payloads``, with the size found from their lengths."""
        sizes = set(map(len, payloads))
        return cls(payloads, sizes.pop() if len(sizes) == 1 else MIXED)

    @property
    def nbytes(self) -> int:
        """The sum of the payloads' lengths."""
        if self.size != MIXED:
            return self.size * len(self.payloads)
        return sum(map(len, self.payloads))

    def extend(self, payloads: list[bytes]) -> None:
        """Append ``payloads``; the run takes ownership of the list."""
        if self.payloads:
            self.payloads += payloads
        else:
            self.payloads = payloads
