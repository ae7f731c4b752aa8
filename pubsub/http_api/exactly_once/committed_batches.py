"""The last committed batch of each query, kept with the history.

A query belongs to the subject of the token that writes it; without a token it has no owner. The
queries of one owner do not affect those of another, even if they have the same name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from pubsub.broker.stored_rows import read_row
from pubsub.interfaces import IStore

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget

COMMITS = "owned-commits"
"""The table of the store's metadata; keys are the owner and the query as a JSON list."""
UNOWNED_COMMITS = "commits"
"""The table of earlier versions, which did not record owners: keys are queries."""
MAX_QUERIES = 10_000
"""Queries that are remembered of each subject, and of all clients without a token together."""
_QUERY_BYTES = 1500
# All queries take at most this part of max-memory.
_SHARE = 8
# Queries that are forgotten with a commit, at most.
_FORGOTTEN = 10


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed batch; ``at`` is in µs since the Unix epoch.

    ``address`` is that of a client without a token, otherwise empty. ``sync`` is True if one of its
    topics is stored as ``sync``.
    """

    batch: int
    first: int
    next: int
    messages: int
    at: int
    address: str = ""
    sync: bool = False


@dataclass(slots=True)
class _Queries:
    """The queries of one owner; the one that committed last is the last of its address."""

    commits: dict[str, Commit] = field(default_factory=dict)
    addresses: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, query: str, commit: Commit) -> None:
        self.remove(query)
        self.commits[query] = commit
        self.addresses.setdefault(commit.address, {})[query] = None

    def remove(self, query: str) -> None:
        commit = self.commits.pop(query, None)
        if commit is not None:
            queries = self.addresses[commit.address]
            del queries[query]
            if not queries:
                del self.addresses[commit.address]

    def oldest(self) -> str:
        """Return the oldest query of the address that has the most of them."""
        largest = max(self.addresses.values(), key=len)
        return next(iter(largest))


class CommittedBatches:
    """The commits of all queries. ``memory`` is charged for them."""

    def __init__(self, store: IStore, memory: MemoryBudget) -> None:
        self._store = store
        self._memory = memory
        self._owners: dict[str | None, _Queries] = {}
        # The queries of all owners, in the order of their last commits.
        self._order: dict[tuple[str | None, str], None] = {}
        self._unowned: dict[str, Commit] = {}

    def restore(self) -> None:
        """Load the stored commits."""
        found = [(json.loads(key), read_row(Commit, row)) for key, row in self._rows(COMMITS)]
        for (owner, query), commit in sorted(found, key=lambda row: row[1].at):
            self._add(owner, query, commit)
        self._unowned = {query: read_row(Commit, row) for query, row in self._rows(UNOWNED_COMMITS)}
        self._memory.add(_QUERY_BYTES * len(self._unowned))

    def _rows(self, table: str) -> list[tuple[str, bytes]]:
        return list(self._store.items(table))

    def last(self, owner: str | None, query: str) -> Commit | None:
        """Return the last commit of the owner's query, or None.

        A commit of an earlier version counts for each owner. It cannot be changed any more.
        """
        queries = self._owners.get(owner)
        commit = None if queries is None else queries.commits.get(query)
        return self._unowned.get(query) if commit is None else commit

    def record(self, owner: str | None, query: str, commit: Commit) -> None:
        """Remember a commit.

        An owner with more than MAX_QUERIES loses the oldest one. Of clients without a token it is
        the oldest of the address that has the most, so that no address can push out the others'.
        If those of all owners take more than their part of the memory, the oldest of all is lost.
        """
        self._add(owner, query, commit)
        self._store.put(COMMITS, _key(owner, query), json.dumps(asdict(commit)).encode())
        queries = self._owners[owner]
        if len(queries.commits) > MAX_QUERIES:
            self._forget(owner, queries.oldest())
        # An earlier version, or a larger max-memory, may have left many more: some at a time.
        for _ in range(_FORGOTTEN):
            if len(self._order) * _QUERY_BYTES > self._memory.part(_SHARE):
                self._forget(*next(iter(self._order)))

    def _forget(self, owner: str | None, query: str) -> None:
        queries = self._owners[owner]
        queries.remove(query)
        if not queries.commits:
            del self._owners[owner]
        del self._order[owner, query]
        self._memory.free(_QUERY_BYTES)
        self._store.delete(COMMITS, _key(owner, query))

    def _add(self, owner: str | None, query: str, commit: Commit) -> None:
        queries = self._owners.setdefault(owner, _Queries())
        before = len(queries.commits)
        queries.add(query, commit)
        self._order.pop((owner, query), None)
        self._order[owner, query] = None
        self._memory.add(_QUERY_BYTES * (len(queries.commits) - before))


def _key(owner: str | None, query: str) -> str:
    return json.dumps([owner, query])
