"""Shares: clients divide a resource, so that none of them can take all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable


class Shares:
    """``limit()`` units that clients hold for a while.

    A client may hold as much as it leaves free: half of all units if no other holds any, a third
    each if two do, and so on. So there is room for the next client, and none is set aside for
    clients that never come. (Shared buffers of switches are divided like this, as dynamic
    thresholds with a factor of one; Choudhury and Hahne, 1998.) The first units that a client asks
    for are granted while there are any.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self.used = 0
        self._limit = limit
        self._held: Counter[Hashable] = Counter()

    @property
    def limit(self) -> int:
        """The number of units there are."""
        return self._limit()

    def held(self, client: Hashable) -> int:
        """Return the number of units that ``client`` holds."""
        return self._held[client]

    def take(self, client: Hashable, amount: int) -> bool:
        """Take ``amount`` units for ``client``; return False, and take none, beyond its share."""
        own, left = self._held[client], self.limit - self.used - amount
        if left < 0 or (own and own + amount > left):
            return False
        self.used += amount
        self._held[client] = own + amount
        return True

    def free(self, client: Hashable, amount: int) -> None:
        """Return units of ``client``."""
        self.used -= amount
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]
