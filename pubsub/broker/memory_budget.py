"""The memory that clients make the broker hold: one account, with one bound."""

from __future__ import annotations

from pubsub.errors import MemoryExhausted
from pubsub.interfaces import Holdable, MemoryHolder


class MemoryBudget:
    """Counts the bytes that the broker holds for its clients, up to ``limit`` (zero: no bound).

    At the bound ``reserve`` refuses new objects, publishers are held after their next batch, and
    housekeeping evicts the largest holder if that does not help in time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.holders: set[MemoryHolder] = set()
        self._waiting: set[Holdable] = set()

    @property
    def full(self) -> bool:
        """True if the bound is reached."""
        return bool(self.limit) and self.used >= self.limit

    def reserve(self, nbytes: int) -> None:
        """Count ``nbytes`` for a new object; raises MemoryExhausted at the bound."""
        if self.full:
            raise MemoryExhausted(f"{self.used} bytes are in use, the bound is {self.limit}")
        self.used += nbytes

    def add(self, nbytes: int) -> None:
        """Count ``nbytes`` that are already in use, regardless of the bound."""
        self.used += nbytes

    def free(self, nbytes: int) -> None:
        """Return ``nbytes``; below the bound the waiting publishers are released."""
        self.used -= nbytes
        if self._waiting and not self.full:
            waiting, self._waiting = self._waiting, set()
            for publisher in waiting:
                publisher.release(self)

    def charge(self, holder: MemoryHolder, before: int, now: int, mark: int) -> None:
        """Count a change of ``holder`` from ``before`` to ``now`` bytes.

        With more than ``mark`` bytes the holder can be evicted.
        """
        if now > mark:
            self.holders.add(holder)
        else:
            self.holders.discard(holder)
        if now > before:
            self.add(now - before)
        else:
            self.free(before - now)

    def wait(self, publisher: Holdable) -> None:
        """Hold ``publisher`` until memory is available."""
        self._waiting.add(publisher)
        publisher.hold(self)

    def largest(self) -> MemoryHolder | None:
        """Return the holder of the most bytes, or None if there is no large holder."""
        return max(self.holders, key=lambda holder: holder.held, default=None)
