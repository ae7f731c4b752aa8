"""``SettledBatches``: the last batch of each query that is known to be published.

It is kept with the history, so that the shared state can get it again after a loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.interfaces import IStore

QueryName = tuple[str | None, str]
"""The owner of a query, and its name."""
SETTLED_BATCHES = "settled-batches"
"""The table of the metadata with the last published batch and its time, by query."""
KEPT = 30 * 24 * 3600
"""Seconds for which the last batch of a query is known to all brokers."""
MAX_QUERIES = 10_000
"""Queries that are remembered of each owner, and of all clients without one together."""
_QUERY_BYTES = 600
# Queries that one commit forgets at most, as their time is over.
_FORGOTTEN = 16
_Settled = tuple[int, int]
"""A batch, and its time in seconds since the Unix epoch."""


class SettledBatches:
    """The batches in ``store``; ``memory`` is charged for them, and ``time`` is that of the day."""

    def __init__(self, store: IStore, memory: MemoryBudget, time: Callable[[], float]) -> None:
        self._store, self._memory, self._time = store, memory, time
        # By owner; the query that was settled last is the last one.
        self._owners: dict[str | None, dict[str, _Settled]] = {}
        # All queries in the order in which they were settled.
        self._order: dict[QueryName, None] = {}

    def restore(self) -> None:
        """Read what is stored."""
        found = [(*json.loads(key), json.loads(row)) for key, row in self._rows()]
        for owner, name, (batch, at) in sorted(found, key=lambda row: row[2][1]):
            self._add((owner, name), (batch, at))
        self._forget_old(len(found))

    def _rows(self) -> list[tuple[str, bytes]]:
        return list(self._store.items(SETTLED_BATCHES))

    def last(self, query: QueryName) -> int:
        """Return the last batch that is known to be published, or -1."""
        batch, at = self._settled_of(query)
        return batch if self._time() - at < KEPT else -1

    def seconds(self, query: QueryName) -> int:
        """Return for how long the last batch of ``query`` is known still."""
        # It may have been forgotten while it was shared.
        age = int(self._time()) - self._settled_of(query)[1]
        return min(max(KEPT - age, 1), KEPT)

    def _settled_of(self, query: QueryName) -> _Settled:
        owner, name = query
        return self._owners.get(owner, {}).get(name, (-1, 0))

    def keep(self, query: QueryName, batch: int) -> None:
        """``batch`` is published; the oldest query of an owner with too many is forgotten."""
        if batch <= self.last(query):
            return
        self._forget_old(_FORGOTTEN)
        settled = batch, int(self._time())
        self._add(query, settled)
        self._store.put(SETTLED_BATCHES, key_of(query), json.dumps(settled).encode())
        owner, names = query[0], self._owners[query[0]]
        if len(names) > MAX_QUERIES:
            self._forget((owner, next(iter(names))))

    def _forget_old(self, most: int) -> None:
        """Forget at most this many queries whose last batch the brokers need not know any more."""
        first = self._time() - KEPT
        for query in list(islice(self._order, most)):
            if self._settled_of(query)[1] > first:
                return
            self._forget(query)

    def _forget(self, query: QueryName) -> None:
        owner, name = query
        names = self._owners[owner]
        del names[name], self._order[query]
        if not names:
            # There may be any number of owners over time.
            del self._owners[owner]
        self._memory.free(_QUERY_BYTES)
        self._store.delete(SETTLED_BATCHES, key_of(query))

    def _add(self, query: QueryName, settled: _Settled) -> None:
        owner, name = query
        names = self._owners.setdefault(owner, {})
        if names.pop(name, None) is None:
            self._memory.add(_QUERY_BYTES)
        names[name] = settled
        self._order.pop(query, None)
        self._order[query] = None

    def queries(self) -> Iterator[QueryName]:
        """Yield the queries, the newest of an owner first; they may change meanwhile."""
        for owner, names in list(self._owners.items()):
            for name in reversed(list(names)):
                yield owner, name


def key_of(query: QueryName) -> str:
    """Return the key of ``query`` in tables of the metadata."""
    return json.dumps(query)
