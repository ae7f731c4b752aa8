"""``ReplicaImport``: adds messages of other brokers to this history, and delivers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pubsub.broker.access_rules.access import RESERVED
from pubsub.errors import Refused

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.service import BrokerService
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.store.shared_store import SharedStore

_LABEL = "backplane"


class ReplicaImport:
    """Stores and routes; the messages keep their ids and timestamps."""

    def __init__(self, broker: BrokerService, store: SharedStore) -> None:
        self._store = store
        self._topics = broker.topics
        self._dispatcher = broker.dispatcher
        self._queue_keys = broker.queue_keys
        self._counters = broker.counters
        self.imported = self.recovered = 0
        """Messages of other brokers, and of this one that its log had lost."""

    @contextmanager
    def together(self, batches: Sequence[Batch], keyed: frozenset[str]) -> Iterator[None]:
        """Store ``batches`` in one commit with the changes of the context; then route them.

        ``keyed`` are the topics that have a queue key at their origin.
        """
        kept = [part for batch in batches for part in self._permitted(batch, keyed)]
        with self._store.importing():
            for batch in kept:
                self._store.append(batch)
            yield
        for batch in kept:
            self.imported += batch.count
            self._route(batch)

    @contextmanager
    def recovering(self, batches: Sequence[Batch]) -> Iterator[None]:
        """Store messages of this broker that its log has lost, in one commit with the context.

        Then route them: clients may have resumed their sessions before.
        """
        with self._store.importing():
            for batch in batches:
                self._store.append(batch)
                self.recovered += batch.count
            yield
        for batch in batches:
            for part in self._permitted(batch, frozenset()):
                self._route(part)

    def _route(self, batch: Batch) -> None:
        self._dispatcher.route_stored([self._topic(name) for name in batch.topics], batch)

    def _permitted(self, batch: Batch, keyed: frozenset[str]) -> list[Batch]:
        if all(self._refusal(name, keyed) is None for name in batch.topics):
            return [batch]
        found = []
        for _, part in batch.runs():
            refusal = self._refusal(part.topic, keyed)
            if refusal is None:
                found.append(part)
            else:
                self.refuse(refusal, part.count)
        return found

    def _refusal(self, name: str, keyed: frozenset[str]) -> str | None:
        if name.startswith(RESERVED):
            return "reserved"
        # Clients that read it here would not need the key that they need there.
        is_open = name in keyed and self._queue_keys.proof(name) == b""
        if is_open or name in self._queue_keys.exclusive:
            return "wrong-queue-key"
        return None

    def refuse(self, reason: str, count: int) -> None:
        """Count messages that are not taken."""
        self._counters.refuse(_LABEL, reason, "the engine", count)

    def _topic(self, name: str) -> Topic | None:
        try:
            return self._topics.create(name)
        except Refused as refused:
            # The history has the messages nevertheless.
            self.refuse(refused.reason, 1)
            return None
