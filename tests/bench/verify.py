"""Finds lost, duplicated and reordered messages, at a few nanoseconds a message.

Numpy divides the keys of a read into runs of consecutive numbers. Each run is then counted in one
step, whatever its length. Without errors there is one run for each publisher and read.
"""

from __future__ import annotations

from tests.bench.batches import PUBLISHER_SHIFT, SEQUENCE_MASK, Keys


def runs(keys: Keys) -> list[tuple[int, int, int]]:
    """Return publisher, first sequence number and length of each run of consecutive keys."""
    breaks = (keys[1:] - keys[:-1] != 1).nonzero()[0] + 1
    starts = [0, *breaks.tolist()]
    ends = [*starts[1:], len(keys)]
    found = []
    for start, end in zip(starts, ends, strict=True):
        key = int(keys[start])
        found.append((key >> PUBLISHER_SHIFT, key & SEQUENCE_MASK, end - start))
    return found


class Stream:
    """The messages of one publisher that one subscriber has received.

    `cycle` is the number of messages after which sequence numbers start again at 0. Positions count
    from the first message and do not start again.
    """

    __slots__ = ("_missing", "cycle", "duplicated", "out_of_order", "position")

    def __init__(self, cycle: int) -> None:
        self.position = 0
        """Position of the next message if none is lost."""
        self.duplicated = 0
        self.out_of_order = 0
        self.cycle = cycle
        self._missing: set[int] = set()

    @property
    def lost(self) -> int:
        """Skipped messages that have not arrived since."""
        return len(self._missing)

    def arrived(self, first: int, count: int) -> bool:
        """Count `count` messages from number `first` on. Return False if others were expected."""
        ahead = (first - self.position) % self.cycle
        if not ahead:
            self.position += count
            return True
        if ahead <= self.cycle // 2:
            self._missing.update(range(self.position, self.position + ahead))
            self.position += ahead + count
        else:
            self._arrived_late(self.position + ahead - self.cycle, count)
        return False

    def _arrived_late(self, start: int, count: int) -> None:
        for position in range(start, start + count):
            if position >= self.position:
                self.position = position + 1
            elif position in self._missing:
                self._missing.remove(position)
                self.out_of_order += 1
            else:
                self.duplicated += 1
