"""Finds lost, duplicated and reordered messages, at a few nanoseconds a message.

Numpy cuts the keys of a read into runs of consecutive numbers; each run is then accounted for in
one step, whatever its length. As long as nothing is wrong there is one run per publisher and read.
"""

from __future__ import annotations

from tests.bench.batches import PUBLISHER_SHIFT, SEQUENCE_MASK, Keys


def runs(keys: Keys) -> list[tuple[int, int, int]]:
    """Publisher, first sequence number and length of each run of consecutive keys."""
    breaks = (keys[1:] - keys[:-1] != 1).nonzero()[0] + 1
    starts = [0, *breaks.tolist()]
    ends = [*starts[1:], len(keys)]
    found = []
    for start, end in zip(starts, ends, strict=True):
        key = int(keys[start])
        found.append((key >> PUBLISHER_SHIFT, key & SEQUENCE_MASK, end - start))
    return found


class Stream:
    """What one subscriber has got of one publisher.

    `cycle` is the number of messages after which sequence numbers start again at 0. Positions
    count on from the first message without starting again.
    """

    __slots__ = ("_missing", "cycle", "duplicated", "out_of_order", "position")

    def __init__(self, cycle: int) -> None:
        self.position = 0
        """Of the next message, if nothing is lost."""
        self.duplicated = 0
        self.out_of_order = 0
        self.cycle = cycle
        self._missing: set[int] = set()

    @property
    def lost(self) -> int:
        """Messages that were skipped and have not come since."""
        return len(self._missing)

    def arrived(self, first: int, count: int) -> bool:
        """Accounts for `count` messages numbered from `first` on; False if others were due."""
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
