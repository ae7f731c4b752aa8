"""The exactly-once batches of a broker, which all its HTTP listeners share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.http_api.exactly_once.committed_batches import CommittedBatches
from pubsub.http_api.exactly_once.part_registry import PartRegistry, QueryKey
from pubsub.http_api.exactly_once.shared_commits import SharedCommits

if TYPE_CHECKING:
    from twisted.internet.defer import DeferredLock

    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.interfaces import IStore


class BatchState:
    """The parts that are staged, and the batches that are committed."""

    def __init__(self, store: IStore, memory: MemoryBudget) -> None:
        self.parts = PartRegistry(memory)
        self.committed = CommittedBatches(store, memory)
        self.commits = SharedCommits(store, self.committed)
        self.locks: dict[QueryKey, DeferredLock] = {}
        """Held while a batch of the query is committed."""
        self._is_restored = False

    def restore(self) -> None:
        """Load the stored commits, once."""
        if not self._is_restored:
            self._is_restored = True
            self.committed.restore()
            self.commits.restore()
