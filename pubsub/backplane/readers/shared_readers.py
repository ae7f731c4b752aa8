"""``SharedReaders``: the positions of readers, so that readers can continue at another broker.

A broker shares the last position of each reader in the background. A position that is not
shared yet when a broker is killed is read again by its readers.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pubsub.backplane.state.entry_format import (
    MalformedEntry,
    decode_members,
    decode_position,
    encode_members,
)
from pubsub.backplane.state.later_calls import LaterCalls
from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import in_time
from pubsub.errors import BackplaneAway, HistoryUnavailable

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from pubsub.backplane.positions.shared_position import SharedPosition
    from pubsub.backplane.positions.shared_positions import SharedPositions
    from pubsub.backplane.state.shared_state import ISharedState, StateEntry
    from pubsub.broker.memory_budget import MemoryBudget

log = Logger()
Name = tuple[str | None, str]
"""The owner of a reader, and its name."""
_VERSION = 1
# Bytes of the largest value.
_MAX_VALUE = 128 * 1024
# Readers that are shared at once, and seconds until others are after a failure.
_AT_ONCE, _PAUSE = 32, 2.0
_ATTEMPTS = 8
# Estimated bytes of a reader that waits, for the memory budget.
_WAITING_BYTES = 512
# The time for which the deletion of a reader is remembered.
_REMEMBERED = 30 * 24 * 3600


class _ReaderValue(NamedTuple):
    """The value of a key: ``position`` is None if the reader was deleted."""

    broker: str
    position: SharedPosition | None

    def encode(self) -> bytes:
        position = None if self.position is None else self.position.as_json()
        return encode_members(_VERSION, {"broker": self.broker, "position": position})


class SharedReaders:
    """The readers in ``state``; ``positions`` are those of this broker's history.

    ``memory`` is charged for what is not shared yet.
    """

    def __init__(
        self,
        state: ISharedState,
        positions: SharedPositions,
        clock: IReactorTime,
        memory: MemoryBudget,
    ) -> None:
        self._state, self._positions, self._clock = state, positions, clock
        self._memory = memory
        self._later = LaterCalls(clock)
        # The value to share: an offset, a position, or None for a reader that was deleted.
        self._pending: dict[Name, int | SharedPosition | None] = {}
        self._under_way: set[Name] = set()
        self._revisions: dict[Name, int] = {}
        self._beginning = False
        # After a failure none is begun for a moment: all of them would fail, however many wait.
        self._paused = False
        positions.readers = self

    def close(self) -> None:
        """The broker ends; what is not shared is not shared any more."""
        self._later.close()

    def report(self, reader: Name, place: int | SharedPosition | None) -> None:
        """Share the offset or position of ``reader`` soon; None if it was deleted."""
        if not self._is_waiting(reader):
            self._memory.add(_WAITING_BYTES)
        self._pending[reader] = place
        self._begin()

    def _is_waiting(self, reader: Name) -> bool:
        return reader in self._pending or reader in self._under_way

    def _begin(self) -> None:
        if self._beginning:
            return
        self._beginning = True
        while (reader := self._next()) is not None:
            self._under_way.add(reader)
            done = Deferred.fromCoroutine(self._share(reader, self._pending.pop(reader)))
            done.addErrback(
                lambda failure: log.failure("backplane: sharing a reader has failed", failure)
            )
            done.addBoth(self._ended, reader)
        self._beginning = False

    def _next(self) -> Name | None:
        if self._paused or len(self._under_way) >= _AT_ONCE:
            return None
        return next((one for one in self._pending if one not in self._under_way), None)

    def _ended(self, result: object, reader: Name) -> None:
        self._under_way.discard(reader)
        if reader not in self._pending:
            self._memory.free(_WAITING_BYTES)
        self._begin()

    async def _share(self, reader: Name, place: int | SharedPosition | None) -> None:
        try:
            await self._put(reader, place)
        except (BackplaneAway, HistoryUnavailable):
            self._pending.setdefault(reader, place)
            if not self._paused:
                self._paused = True
                self._later.add(_PAUSE, self._resume)

    def _resume(self) -> None:
        self._paused = False
        self._begin()

    async def _put(self, reader: Name, place: int | SharedPosition | None) -> None:
        position = await self._positions.at(place) if isinstance(place, int) else place
        value = _ReaderValue(self._positions.origin, position).encode()
        seconds = _REMEMBERED if position is None else 0
        revision = self._revisions.get(reader, 0)
        if position is None and not revision:
            entry = await self._get(reader)
            if entry is None:
                # Nothing is written for the names of readers that nobody has.
                return
            revision = entry.revision
        for _ in range(_ATTEMPTS):
            try:
                done = self._state.put(_key(reader), value, revision, seconds)
                revision = await in_time(done, self._clock)
            except Outdated as outdated:
                # The reader has reported to another broker before.
                revision = outdated.revision
            else:
                self._revisions[reader] = revision
                if position is None:
                    del self._revisions[reader]
                return
        raise BackplaneAway("other brokers change the reader at the same time")

    async def elsewhere(self, reader: Name) -> SharedPosition | None:
        """Return the position that ``reader`` has reported to another broker last.

        None if it has reported to this one since, or to none, or if the engine is away.
        """
        if self._is_waiting(reader):
            return None
        try:
            entry = await self._get(reader)
        except BackplaneAway:
            return None
        value = None if entry is None else _decode(entry.value)
        return None if value is None or value.broker == self._positions.origin else value.position

    async def _get(self, reader: Name) -> StateEntry | None:
        found: StateEntry | None = await in_time(self._state.get(_key(reader)), self._clock)
        return found


def _key(reader: Name) -> str:
    return f"r.{hashlib.sha256(json.dumps(reader).encode()).hexdigest()[:32]}"


def _decode(data: bytes) -> _ReaderValue | None:
    """Return the value; None if another version has written it."""
    try:
        found = decode_members(data, _VERSION, _MAX_VALUE)
        broker, position = found.get("broker"), found.get("position")
        return _ReaderValue(str(broker), None if position is None else decode_position(position))
    except MalformedEntry:
        return None
