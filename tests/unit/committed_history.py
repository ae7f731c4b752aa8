"""A history that a test commits."""

from __future__ import annotations

from collections.abc import Callable

from pubsub.broker.routing.batch import Batch
from pubsub.errors import HistoryUnavailable
from pubsub.kernel import Senders
from pubsub.store.memory_store import MemoryStore


class SlowDisk(MemoryStore):
    """A history that the test commits."""

    durable = True

    def __init__(self) -> None:
        super().__init__(1000, 2**20)
        self.waiting: list[Callable[[bool], None]] = []
        self.unwritten: list[Callable[[bool], None]] = []
        self.broken = False
        self.safe = 0

    @property
    def committed(self) -> int:
        return self.safe

    def append(self, batch: Batch, senders: Senders | None = None) -> None:
        if self.broken:
            raise HistoryUnavailable("disk full")
        super().append(batch, senders)

    def when_stored(self, call: Callable[[bool], None]) -> None:
        self.waiting.append(call)

    def when_written(self, call: Callable[[bool], None]) -> None:
        self.unwritten.append(call)

    def write(self, done: bool = True) -> None:
        """Report everything appended so far as written, or as failed."""
        if done:
            self.safe = self.next_offset
        waiting, self.unwritten = self.unwritten, []
        for call in waiting:
            call(done)

    def commit(self, done: bool = True) -> None:
        """Report everything appended so far as stored, or as failed."""
        self.write(done)
        if done:
            self.safe = self.next_offset
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call(done)
