"""``IdentityValues``: the values of this broker's identities, written after each change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from pubsub.backplane.identities.identity_entry import (
    IdentityEntry,
    decode_identity,
    encode_identity,
    identity_key,
)
from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.state.outdated import Outdated
from pubsub.errors import BackplaneAway, HistoryUnavailable

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.backplane.state.shared_state import ISharedState
    from pubsub.broker.clients.identity_sharing import IdentityContent
    from pubsub.broker.memory_budget import MemoryBudget

log = Logger()
_DAY = 24 * 3600
KEPT = 30 * _DAY
"""Seconds for which a value is kept after it was written; it is written again after a day."""
_REFRESHED = _DAY
_ATTEMPTS = 4
# Estimated bytes of an identity that is shared, for the memory budget.
_BYTES = 768
_Written = Callable[[str | None], None]


class _Held:
    """An identity that this broker has; ``calls`` wait for the end of the next write."""

    __slots__ = ("calls", "is_changed", "is_writing", "revision", "round", "waiting", "written")

    def __init__(self) -> None:
        self.revision = self.round = 0
        self.written = 0.0
        self.is_changed = self.is_writing = False
        self.calls: list[_Written] = []
        self.waiting: list[_Written] = []


class IdentityValues:
    """The identities in ``state``; ``content`` returns one, ``lost`` is told of one of others.

    ``round`` counts the connections to the engine: an identity is certainly this broker's if its
    value was read or written since the last one began.
    """

    def __init__(
        self,
        state: ISharedState,
        bounded: Callable[[Deferred[Any]], Deferred[Any]],
        memory: MemoryBudget,
        clock: Any,
        content: Callable[[str], IdentityContent | None],
        lost: Callable[[str], object],
    ) -> None:
        self._state, self._bounded = state, bounded
        self._memory, self._clock = memory, clock
        self._content, self._lost = content, lost
        self.log = ""
        self.round = 0
        self.held: dict[str, _Held] = {}
        self._failed: set[str] = set()
        self._waiting: set[str] = set()

    @property
    def waiting(self) -> int:
        """The number of values that are to be written."""
        return len(self._waiting)

    def is_current(self, name: str) -> bool:
        """Return whether the identity is certainly this broker's."""
        one = self.held.get(name)
        return one is not None and one.round == self.round

    def is_fresh(self, name: str) -> bool:
        """Return whether the value is this broker's, and was written not long ago."""
        return self.is_current(name) and (
            self._clock.seconds() - self.held[name].written < _REFRESHED
        )

    def have(self, name: str, revision: int) -> None:
        """This broker has the identity; its value was written with this revision."""
        one = self.held.get(name)
        if one is None:
            one = self.held[name] = _Held()
            self._memory.add(_BYTES)
        one.revision, one.round = revision, self.round
        one.written = self._clock.seconds()

    def drop(self, name: str, reason: str | None = BackplaneAway.reason) -> int:
        """This broker does not have the identity any more; return the revision of its value."""
        one = self.held.pop(name, None)
        if one is None:
            return 0
        self._memory.free(_BYTES)
        self._failed.discard(name)
        self._waiting.discard(name)
        calls, one.calls, one.waiting = one.waiting + one.calls, [], []
        for call in calls:
            call(reason)
        return one.revision

    # Writing

    def change(self, name: str) -> None:
        """Write the identity soon."""
        one = self.held.get(name)
        if one is not None:
            one.is_changed = True
            self._waiting.add(name)
            if not one.is_writing:
                ensureDeferred(self._write(name, one)).addErrback(unexpected)

    def when_written(self, name: str, call: _Written) -> None:
        """See ``IdentitySharing``."""
        one = self.held.get(name)
        if one is None or not (one.is_changed or one.is_writing):
            call(None)
        elif one.is_changed:
            one.calls.append(call)
        else:
            one.waiting.append(call)

    def retry(self) -> None:
        """Write again what could not be written."""
        names, self._failed = self._failed, set()
        for name in names:
            self.change(name)

    async def _write(self, name: str, one: _Held) -> None:
        one.is_writing = True
        # The changes of this reactor tick are written together.
        while one.is_changed and self.held.get(name) is one:
            one.is_changed = False
            one.waiting, one.calls = one.waiting + one.calls, []
            reason = await self._put(name, one)
            calls, one.waiting = one.waiting, []
            for call in calls:
                call(reason)
            if reason is not None:
                one.is_changed = True
                self._failed.add(name)
                break
        one.is_writing = False
        if self.held.get(name) is one and not one.is_changed:
            self._waiting.discard(name)

    async def _put(self, name: str, one: _Held) -> str | None:
        """Write the value; return the reason if that has failed."""
        content = self._content(name)
        if content is None:
            return None
        entry = IdentityEntry(self.log, content)
        try:
            revision = await self.put(name, entry, one.revision)
        except BackplaneAway:
            return BackplaneAway.reason
        if self.held.get(name) is not one:
            return None if revision else BackplaneAway.reason
        if not revision:
            self._lost(name)
            return BackplaneAway.reason
        self.have(name, revision)
        return None

    async def put(self, name: str, entry: IdentityEntry, revision: int) -> int:
        """Replace the value, which is this broker's; return its revision.

        0 if another broker has the identity. Raises BackplaneAway.
        """
        value = encode_identity(entry)
        for _ in range(_ATTEMPTS):
            try:
                put = self._state.put(identity_key(name), value, revision, KEPT)
                written: int = await self._bounded(put)
                return written
            except Outdated as found:
                # Its time was over, or the answer to an earlier change was lost.
                if found.value is not None and not self._is_mine(found.value):
                    return 0
                revision = found.revision
        raise BackplaneAway("the identity changes at the same time")

    def _is_mine(self, value: bytes) -> bool:
        try:
            return decode_identity(value).log == self.log
        except MalformedEntry:
            return False


def unexpected(failure: Failure) -> None:
    """Log an error that is not the absence of the engine or of the history."""
    if failure.check(BackplaneAway, Outdated, HistoryUnavailable, MalformedEntry) is None:
        log.failure("sharing an identity failed", failure)
