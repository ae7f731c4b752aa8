"""The entries of topics that this broker knows to be in the shared state."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from pubsub.backplane.state.shared_state import in_time
from pubsub.backplane.topics.topic_entry import DELETED, UNUSED, TopicEntry, encode, key_of

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from pubsub.backplane.state.shared_state import ISharedState
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.interfaces import IStore

IDS = "shared-topics"
"""The table of the store's metadata with the ids of the topics that were shared."""
_DAY = 24 * 3600
# Seconds for which ended topics are remembered. Only brokers that were away for longer create
# such a topic again. Of an exclusive topic they have nothing.
_REMEMBERED = {DELETED: 30 * _DAY, UNUSED: _DAY}
_BRIEFLY = 60
# Estimated cost of an entry, for the memory budget.
_ENTRY_BYTES = 512


class Known:
    """An entry, its revision, and the last connection to the engine that reported it."""

    __slots__ = ("entry", "revision", "round")

    def __init__(self, entry: TopicEntry, revision: int, round: int) -> None:
        self.entry = entry
        self.revision = revision
        self.round = round


class SharedEntries:
    """The entries by topic, and the ids that the topics of the store had when they were shared."""

    def __init__(
        self, state: ISharedState, store: IStore, memory: MemoryBudget, clock: IReactorTime
    ) -> None:
        self._state = state
        self._store = store
        self._memory = memory
        self.clock = clock
        self._known: dict[str, Known] = {}
        # The names of exclusive topics.
        self._owned: dict[str, set[str]] = {}
        # After the id of the bucket.
        self._ids: dict[str, bytes] = {}
        self._bucket = b""
        self.round = 0
        """Counts the connections to the engine."""

    def restore(self) -> None:
        """Read the entries that the previous run shared."""
        self._ids = dict(self._store.items(IDS))

    def at_bucket(self, id: bytes) -> bool:
        """``id`` is that of the bucket; return whether it was another one before.

        Its entries are discarded.
        """
        before, self._bucket = self._bucket, id
        if id != before:
            self._memory.free(_ENTRY_BYTES * len(self._known))
            self._known.clear()
            self._owned.clear()
        return before not in (b"", id)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def get(self, name: str) -> Known | None:
        """Return the known entry of ``name``."""
        return self._known.get(name)

    def current(self, name: str) -> Known | None:
        """Return the entry of ``name``, if this connection has reported it."""
        known = self._known.get(name)
        return known if known is not None and known.round == self.round else None

    def id_of(self, name: str) -> str | None:
        """Return the id with which the topic here was shared; None if it never was."""
        known = self._known.get(name)
        if known is not None:
            return known.entry.id
        bucket, _, id = self._ids.get(name, b"").rpartition(b" ")
        return id.decode() if id and bucket == self._bucket else None

    def new_id(self) -> str:
        """Return the id of a topic that is not shared yet."""
        return secrets.token_hex(8)

    def learn(self, name: str, entry: TopicEntry, revision: int) -> None:
        """The brokers have agreed upon ``entry``."""
        before = self._known.get(name)
        # The id of an exclusive topic is not stored; its owner may make it a common one.
        is_stored = self.id_of(name) == entry.id and not (before and before.entry.owner)
        if not is_stored and not entry.owner:
            self._store.put(IDS, name, self._bucket + b" " + entry.id.encode())
        self._ids.pop(name, None)
        if before is None:
            self._memory.add(_ENTRY_BYTES)
        else:
            self._disown(name, before.entry.owner)
        self._known[name] = Known(entry, revision, self.round)
        if entry.owner:
            self._owned.setdefault(entry.owner, set()).add(name)

    def _disown(self, name: str, owner: str) -> None:
        if owner:
            self._owned[owner].discard(name)
            if not self._owned[owner]:
                del self._owned[owner]

    @property
    def owners(self) -> Collection[str]:
        """The owners of exclusive topics."""
        return self._owned.keys()

    def owned_by(self, owner: str) -> list[str]:
        """Return the exclusive topics of ``owner``."""
        return sorted(self._owned.get(owner, ()))

    def forget(self, name: str) -> Known | None:
        """The topic has ended; return its known entry."""
        if name in self._known or name in self._ids:
            self._store.delete(IDS, name)
        self._ids.pop(name, None)
        known = self._known.pop(name, None)
        if known is not None:
            self._memory.free(_ENTRY_BYTES)
            self._disown(name, known.entry.owner)
        return known

    def put(self, name: str, entry: TopicEntry, expected: int) -> Deferred[int]:
        """See ``ISharedState``; there is a deadline."""
        seconds = _REMEMBERED.get(entry.end, _BRIEFLY) if entry.end else 0
        return self.bounded(self._state.put(key_of(name), encode(entry), expected, seconds))

    def bounded(self, done: Deferred[Any]) -> Deferred[Any]:
        """Return ``done``, which fails with BackplaneAway at the deadline."""
        return in_time(done, self.clock)
