"""Shared state in memory: the brokers of one process agree upon it, in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from pubsub.backplane.state import state_format
from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import ISharedState, StateEntry
from pubsub.backplane.state.state_format import is_followed
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from pubsub.backplane.state.shared_state import StateWatcher


class MemoryBucket:
    """The values by key. ``apart`` has the states that do not reach it."""

    refuses = False
    """Whether there is no room for further values."""
    max_bytes = 1024 * 1024
    """Bytes of the largest value."""

    def __init__(self) -> None:
        self.entries: dict[str, StateEntry] = {}
        self.seconds: dict[str, int] = {}
        """After how many seconds a key is to be removed, if it is; nothing removes it here."""
        self.states: list[MemoryState] = []
        self.apart: set[MemoryState] = set()
        self._revision = 0
        self.write(state_format.KEY, state_format.new_format())

    def write(self, key: str, value: bytes) -> int:
        """Set the value at any revision, as another program does; return the new revision."""
        self._revision += 1
        self.entries[key] = entry = StateEntry(key, value, self._revision)
        for state in self.states:
            if state not in self.apart and state_format.is_followed(key):
                state.tell(entry)
        return self._revision

    def clear(self) -> None:
        """Begin again, as an engine that has lost its disk does; no state reaches it meanwhile."""
        self.entries, self._revision = {}, 0
        self.write(state_format.KEY, state_format.new_format())

    def remove(self, key: str) -> None:
        """Remove a key without a notification, as at the end of its time."""
        del self.entries[key]


@implementer(ISharedState)
class MemoryState:
    """One broker's view of ``bucket``; ``later`` runs a call after this tick's events."""

    def __init__(self, bucket: MemoryBucket, later: Callable[[Callable[[], None]], object]) -> None:
        self._bucket = bucket
        self._later = later
        self._watchers: list[StateWatcher] = []
        self._untold: list[StateEntry] = []
        self._changes = 0
        bucket.states.append(self)

    def open(self, watcher: StateWatcher) -> None:
        """See ``ISharedState``."""
        self._watchers.append(watcher)
        if self not in self._bucket.apart:
            self._begin()

    def get(self, key: str) -> Deferred[StateEntry | None]:
        """See ``ISharedState``."""
        if self in self._bucket.apart:
            return fail(BackplaneAway("the engine is away"))
        return succeed(self._bucket.entries.get(key))

    def put(self, key: str, value: bytes, expected: int, seconds: int) -> Deferred[int]:
        """See ``ISharedState``."""
        bucket = self._bucket
        if self in bucket.apart:
            return fail(BackplaneAway("the engine is away"))
        if len(value) > bucket.max_bytes:
            return fail(BackplaneAway("the value is too large for the engine"))
        if bucket.refuses:
            return fail(BackplaneAway("the engine refuses it: no room"))
        before = bucket.entries.get(key)
        if (before.revision if before else 0) != expected:
            return fail(Outdated(before.value, before.revision) if before else Outdated(None, 0))
        bucket.seconds[key] = seconds
        self._changes += 1
        return succeed(bucket.write(key, value))

    def max_bytes(self) -> int:
        """See ``ISharedState``."""
        return self._bucket.max_bytes

    def figures(self) -> Mapping[str, float]:
        """See ``ISharedState``."""
        return {"state_changes": self._changes}

    def tell(self, entry: StateEntry) -> None:
        """Report ``entry`` after this tick."""
        if self._watchers:
            if not self._untold:
                self._later(self._tell)
            self._untold.append(entry)

    def leave(self) -> None:
        """Do not reach the bucket from now on."""
        self._bucket.apart.add(self)
        for watcher in self._watchers:
            watcher.state_away()

    def come_back(self) -> None:
        """Reach the bucket again."""
        self._bucket.apart.discard(self)
        self._begin()

    def _begin(self) -> None:
        followed = [one for one in self._bucket.entries.values() if is_followed(one.key)]
        self._untold = sorted(followed, key=lambda one: one.revision)
        self._later(self._complete)

    def _tell(self) -> None:
        entries, self._untold = self._untold, []
        for watcher in self._watchers:
            if self not in self._bucket.apart:
                watcher.state_changed(entries)

    def _complete(self) -> None:
        self._tell()
        for watcher in self._watchers:
            if self not in self._bucket.apart:
                watcher.state_complete()
