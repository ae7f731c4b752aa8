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

from pubsub.backplane.later_calls import LaterCalls
from pubsub.backplane.outdated import Outdated
from pubsub.backplane.shared_position import MalformedPosition, SharedPosition, of_json
from pubsub.backplane.shared_state import in_time
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from pubsub.backplane.shared_positions import SharedPositions
    from pubsub.backplane.shared_state import ISharedState

log = Logger()
Name = tuple[str | None, str]
"""The owner of a reader, and its name."""
_VERSION = 1
_PAUSE = 2.0
_ATTEMPTS = 8
# The time for which the deletion of a reader is remembered.
_REMEMBERED = 30 * 24 * 3600


class _ReaderValue(NamedTuple):
    """The value of a key: ``position`` is None if the reader was deleted."""

    broker: str
    position: SharedPosition | None

    def encode(self) -> bytes:
        position = None if self.position is None else self.position.as_json()
        members = {"v": _VERSION, "broker": self.broker, "position": position}
        return json.dumps(members, separators=(",", ":")).encode()


class SharedReaders:
    """The readers in ``state``; ``positions`` are those of this broker's history."""

    def __init__(
        self, state: ISharedState, positions: SharedPositions, clock: IReactorTime
    ) -> None:
        self._state, self._positions, self._clock = state, positions, clock
        self._later = LaterCalls(clock)
        # The value to share: an offset, a position, or None for a reader that was deleted.
        self._pending: dict[Name, int | SharedPosition | None] = {}
        self._under_way: set[Name] = set()
        self._revisions: dict[Name, int] = {}
        positions.readers = self

    def close(self) -> None:
        """The broker ends; what is not shared is not shared any more."""
        self._later.close()

    def report(self, reader: Name, place: int | SharedPosition | None) -> None:
        """Share the offset or position of ``reader`` soon; None if it was deleted."""
        self._pending[reader] = place
        if reader not in self._under_way:
            self._under_way.add(reader)
            Deferred.fromCoroutine(self._share(reader)).addErrback(
                lambda failure: log.failure("backplane: sharing a reader has failed", failure)
            )

    async def _share(self, reader: Name) -> None:
        try:
            while reader in self._pending:
                place = self._pending.pop(reader)
                try:
                    await self._put(reader, place)
                except BackplaneAway:
                    self._pending.setdefault(reader, place)
                    self._later.add(_PAUSE, lambda: self._again(reader))
                    return
        finally:
            self._under_way.discard(reader)

    def _again(self, reader: Name) -> None:
        if reader in self._pending:
            self.report(reader, self._pending[reader])

    async def _put(self, reader: Name, place: int | SharedPosition | None) -> None:
        position = await self._positions.at(place) if isinstance(place, int) else place
        value = _ReaderValue(self._positions.origin, position).encode()
        seconds = _REMEMBERED if position is None else 0
        revision = self._revisions.get(reader, 0)
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
        if reader in self._pending or reader in self._under_way:
            return None
        try:
            done = self._state.get(_key(reader))
            entry = await in_time(done, self._clock)
        except BackplaneAway:
            return None
        value = None if entry is None else _decode(entry.value)
        return None if value is None or value.broker == self._positions.origin else value.position


def _key(reader: Name) -> str:
    return f"r.{hashlib.sha256(json.dumps(reader).encode()).hexdigest()[:32]}"


def _decode(data: bytes) -> _ReaderValue | None:
    """Return the value; None if another version has written it."""
    try:
        found = json.loads(data)
        if found["v"] != _VERSION:
            return None
        position = found["position"]
        return _ReaderValue(found["broker"], None if position is None else of_json(position))
    except (ValueError, LookupError, TypeError, MalformedPosition):
        return None
