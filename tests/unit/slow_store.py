"""A store whose commits a test carries out later."""

from __future__ import annotations

from typing import Any

from pubsub.store.memory_store import MemoryStore


class Slow(MemoryStore):
    """A store on a disk that takes its time."""

    durable = True

    def __init__(self) -> None:
        super().__init__(1000, 2**20)
        self.waiting: list[Any] = []

    def when_written(self, call: Any) -> None:
        self.waiting.append(call)

    when_stored = when_written
