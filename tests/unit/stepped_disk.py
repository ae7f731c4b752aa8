"""A store whose writes and syncs a test carries out."""

from __future__ import annotations

from collections.abc import Callable

from pubsub.store.memory_store import MemoryStore


class Disk(MemoryStore):
    """The calls that wait for a write and for a sync; each takes whether that was successful."""

    durable = True

    def __init__(self) -> None:
        super().__init__(1000, 2**20)
        self.writes: list[Callable[[bool], None]] = []
        self.syncs: list[Callable[[bool], None]] = []

    def when_written(self, call: Callable[[bool], None]) -> None:
        self.writes.append(call)

    def when_stored(self, call: Callable[[bool], None]) -> None:
        self.syncs.append(call)
