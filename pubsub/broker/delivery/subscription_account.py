"""The memory of subscriptions: their number, and the bytes that they are charged with.

A subscriber that is live is an item in two dictionaries, its own and that of a ``SubscriberGroup``.
The first subscription of a topic with an encoding makes the group, with an encoder. A subscriber
that is behind has a position for each topic. The figures are means over many sizes of the
dictionaries, which grow in steps; docs/operating.md has them.
"""

from __future__ import annotations

from pubsub.broker.memory_budget import SUBSCRIPTIONS, MemoryBudget

LIVE_BYTES, BEHIND_BYTES = 80, 384
"""Estimated bytes of a subscription, by whether its subscriber is live or behind."""
GROUP_BYTES = 1280
"""Estimated bytes of a ``SubscriberGroup`` and its encoder."""


class SubscriptionAccount:
    """Counts the subscriptions of outboxes in ``memory``.

    ``nbytes`` includes those of a group that is made for a subscription, or ends with it. Each
    method is called after the change: the return of memory may release publishers.
    """

    __slots__ = ("_memory", "number")

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self.number = 0
        """Subscriptions, live or behind."""

    def began(self, nbytes: int) -> None:
        """Count a subscription of ``nbytes``."""
        self.number += 1
        self._memory.count(SUBSCRIPTIONS, nbytes)

    def ended(self, nbytes: int) -> None:
        """End one ``began``."""
        self.number -= 1
        self._memory.count(SUBSCRIPTIONS, -nbytes)

    def group_began(self) -> None:
        """Count a ``SubscriberGroup`` that was counted as ended."""
        self._memory.count(SUBSCRIPTIONS, GROUP_BYTES)
