"""Messages of a copied topic that its host has delivered, until the next page of its history.

Subscribers here get them with the copy. If the host has stopped to store the topic they are in no
page, and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.kernel import Columns

# Bytes of the messages of a topic that are kept. A page comes after a round trip.
_MOST = 256 * 1024


class RecentDeliveries:
    """Those of each topic, by name, charged to ``memory``."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._kept: dict[str, list[Columns]] = {}
        # The numbers of those that are not kept.
        self._others: dict[str, int] = {}

    def __contains__(self, topic: str) -> bool:
        """Return whether the host has delivered messages of ``topic`` since its last page."""
        return topic in self._kept

    def add(self, topic: str, columns: Columns | None) -> None:
        """The host has delivered messages; None if subscribers have them already."""
        kept = self._kept.setdefault(topic, [])
        if columns is None:
            return
        if topic in self._others or sum([one.nbytes for one in kept]) + columns.nbytes > _MOST:
            # The first ones are kept, in order.
            self._others[topic] = self._others.get(topic, 0) + columns.count
        else:
            self._memory.add(columns.nbytes)
            kept.append(columns)

    def take(self, topic: str) -> tuple[list[Columns], int]:
        """Remove those of ``topic``; return what was kept, and the number of the others."""
        kept = self._kept.pop(topic, [])
        for one in kept:
            self._memory.free(one.nbytes)
        return kept, self._others.pop(topic, 0)
