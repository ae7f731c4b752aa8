"""``Damage``: the offsets of a log that were found to be unreadable."""

from __future__ import annotations

from threading import Lock

_MOST = 1000
ByteRange = tuple[int, int]


class Damage:
    """Ranges of offsets (start, stop) that are damaged or missing; for several threads.

    Of more than 1,000 ranges the further ones are not remembered, so that a disk that fails
    altogether costs no memory.
    """

    def __init__(self) -> None:
        self._ranges: list[ByteRange] = []
        self._lock = Lock()

    def note(self, start: int, stop: int) -> bool:
        """Remember a range; return whether some of it was not known."""
        with self._lock:
            if any(first <= start and stop <= last for first, last in self._ranges):
                return False
            apart = [one for one in self._ranges if one[1] < start or one[0] > stop]
            touched = [one for one in self._ranges if one[1] >= start and one[0] <= stop]
            if len(apart) < _MOST:
                first = min([start, *[one[0] for one in touched]])
                last = max([stop, *[one[1] for one in touched]])
                self._ranges = sorted([*apart, (first, last)])
            return True

    def remove(self, start: int, stop: int) -> None:
        """Forget a range, which can be read again."""
        with self._lock:
            pieces = [
                piece
                for first, last in self._ranges
                for piece in ((first, min(last, start)), (max(first, stop), last))
            ]
            self._ranges = sorted({one for one in pieces if one[0] < one[1]})

    def ranges(self, low: int) -> list[ByteRange]:
        """Return the ranges in order, as far as the log has them that begins at ``low``."""
        with self._lock:
            self._ranges = [(max(start, low), stop) for start, stop in self._ranges if stop > low]
            return self._ranges.copy()
