"""Replies to another broker that wait until it reads again: only the latest of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.memory_budget import OUTPUT

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget


class LatestReplies:
    """Replies by their kind, whose bytes are counted in ``memory``.

    It exists only while a reply waits, so that an idle connection does not pay for it.
    """

    __slots__ = ("_memory", "_replies")

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._replies: dict[str, bytes] = {}

    def add(self, kind: str, data: bytes) -> None:
        """Replace the reply of this kind."""
        before = self._replies.get(kind, b"")
        self._replies[kind] = data
        self._memory.count(OUTPUT, len(data) - len(before))

    def take(self) -> list[tuple[str, bytes]]:
        """Remove and return the replies, in the order in which their kinds were added."""
        replies, self._replies = self._replies, {}
        self._memory.count(OUTPUT, -sum(map(len, replies.values())))
        return list(replies.items())
