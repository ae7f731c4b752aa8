"""``LogNumbers``: offsets of this log, as clients of nsd know them, and those of other logs.

A broker gives to clients only offsets before its limit, which it raises long before it is reached.
So another broker knows numbers that are larger than any that a client can have, also after this
one was killed. A limit is in force once the broker has read it back from the changes of the shared
state: then it has also seen each earlier request for one of its identities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from pubsub.backplane.identities.identity_entry import (
    PointsEntry,
    decode_limit,
    decode_points,
    encode_limit,
    encode_points,
    limit_key,
    points_key,
)
from pubsub.backplane.positions.number_points import NumberPoint, NumberPoints, position_at
from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.state.outdated import Outdated
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.backplane.sessions.session_positions import SessionPositions
    from pubsub.backplane.state.shared_state import ISharedState, StateEntry
    from pubsub.broker.clients.identity_sharing import FormerNumbers
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.store.shared_store import SharedStore

TABLE = "shared-numbers"
"""The table of the store's metadata with the limit."""
_LIMIT = "limit"
AHEAD = 2**22
"""Offsets by which the limit is ahead; it is raised when half of them are left."""
_UNLIMITED = 2**62
_DAY = 24 * 3600
# Seconds for which the places of a broker that is gone are known, and between two values.
_KEPT, _REFRESHED = 30 * _DAY, _DAY
_ATTEMPTS = 3
# Seconds for which the points of a broker that is gone are not read again.
_GONE = 1.0
# Seconds for which positions are looked for before the broker stops.
_STOPPING = 2.0


class LogNumbers:
    """The numbers of ``store``; ``bounded`` gives a request a deadline."""

    def __init__(
        self,
        state: ISharedState,
        positions: SessionPositions,
        store: SharedStore,
        bounded: Callable[[Deferred[Any]], Deferred[Any]],
        clock: Any,
    ) -> None:
        self._state, self._positions, self._store = state, positions, store
        self._bounded, self._clock = bounded, clock
        self.limit = _UNLIMITED
        """See ``IdentitySharing``."""
        self._revision = self._points_revision = 0
        self._proposed = -1
        self._points = NumberPoints()
        self._is_raising = self._is_writing = self._is_restored = False
        self._written = -math.inf
        self._value = b""
        self._ready: list[Deferred[None]] = []
        # The points of brokers that are gone, and the time until which they are not read again.
        self._gone: dict[str, tuple[float, PointsEntry, int]] = {}

    @property
    def log(self) -> str:
        """The id of this history."""
        return self._store.log_id

    @property
    def top(self) -> int:
        """The offset before which all messages are that clients were given."""
        return min(self._store.next_offset, self.limit)

    def open(self) -> None:
        """Begin; the store is open."""
        found = dict(self._store.items(TABLE)).get(_LIMIT)
        if found is not None:
            self.limit = int(found)

    # The limit of this log

    def when_ready(self) -> Deferred[None]:
        """Fires when there is a limit; fails with BackplaneAway at the deadline."""
        done: Deferred[None] = Deferred()
        if self.limit < _UNLIMITED:
            done.callback(None)
        else:
            self._ready.append(done)
        return self._bounded(done).addErrback(self._too_late, done)

    def _too_late(self, failure: Failure, done: Deferred[None]) -> Failure:
        self._ready.remove(done)
        return failure

    def reported(self, entry: StateEntry) -> None:
        """The shared state has reported the limit of this log."""
        try:
            limit = decode_limit(entry.value)
        except MalformedEntry:
            return
        self._revision = max(self._revision, entry.revision)
        self._proposed = max(self._proposed, limit)
        if self.limit == _UNLIMITED or limit > self.limit:
            self.limit = limit
            self._store.put(TABLE, _LIMIT, str(limit).encode())
        ready, self._ready = self._ready, []
        for done in ready:
            if not done.called:
                done.callback(None)

    async def raise_limit(self, is_new: bool = False) -> None:
        """Raise the limit unless it is far away, or that is under way.

        With ``is_new``, the shared state may have lost it.
        """
        end = self._store.next_offset
        if self._is_raising or not (is_new or end + AHEAD // 2 >= self._proposed):
            return
        self._is_raising = True
        try:
            await self._put_limit(max(end + AHEAD, self._proposed))
        finally:
            self._is_raising = False

    async def _put_limit(self, limit: int) -> None:
        for _ in range(_ATTEMPTS):
            try:
                put = self._state.put(limit_key(self.log), encode_limit(limit), self._revision, 0)
                self._revision = await self._bounded(put)
                return
            except Outdated as found:
                # The answer to an earlier change was lost, or the broker was started again.
                self._revision = found.revision

    # The points of this log

    async def note(self) -> None:
        """Write where the log ends now, unless that is under way or known."""
        end, now = self._store.next_offset, self._clock.seconds()
        known = self._points.points
        is_new = not known or known[-1].offset < end or now - self._written > _REFRESHED
        if self._is_writing or not is_new:
            return
        self._is_writing = True
        try:
            if not self._is_restored:
                await self._restore()
            self._points.add(NumberPoint(end, await self._positions.at(end)))
            await self._put_points(PointsEntry(tuple(self._points.points)))
            self._written = now
        finally:
            self._is_writing = False

    async def stopped(self, given: Sequence[int]) -> None:
        """Write where the log ends, and where the clients are that were ``given`` messages last.

        If the time is too short for all of ``given``, the first of them are left out.
        """
        if not self._is_restored:
            await self._restore()
        until, known = self._clock.seconds() + _STOPPING, self._points.points
        more = {one.offset: one for one in known}
        for offset in (self._store.next_offset, *reversed(given)):
            if offset not in more and self._clock.seconds() < until:
                more[offset] = NumberPoint(offset, await self._positions.at(offset))
        points = tuple([more[offset] for offset in sorted(more)])
        await self._put_points(PointsEntry(points, True))

    async def _restore(self) -> None:
        found = await self._bounded(self._state.get(points_key(self.log)))
        if found is not None:
            self._points_revision = found.revision
            with suppress(MalformedEntry):
                self._points.restore(decode_points(found.value).points, self._store.next_offset)
        self._is_restored = True

    async def _put_points(self, entry: PointsEntry) -> None:
        value = encode_points(entry)
        for _ in range(_ATTEMPTS):
            try:
                put = self._state.put(points_key(self.log), value, self._points_revision, _KEPT)
                self._points_revision = await self._bounded(put)
                return
            except Outdated as found:
                self._points_revision = found.revision

    # Other logs

    async def limit_of(self, log: str) -> int:
        """Return the limit of another log; raises BackplaneAway or MalformedEntry."""
        found = await self._bounded(self._state.get(limit_key(log)))
        if found is None:
            raise BackplaneAway("the limit of a broker is not known")
        return decode_limit(found.value)

    async def points_of(self, log: str) -> tuple[PointsEntry, int]:
        """Return the points of another log, and their revision; raises the same errors."""
        if log in self._gone:
            until, entry, revision = self._gone[log]
            if self._clock.seconds() < until:
                return entry, revision
        found = await self._bounded(self._state.get(points_key(log)))
        if found is None:
            return PointsEntry(()), 0
        entry = decode_points(found.value)
        if entry.stopped:
            self.is_gone(log, entry, found.revision)
        return entry, found.revision

    def is_gone(self, log: str, entry: PointsEntry, revision: int) -> None:
        """The broker of ``log`` does not answer: many clients may have left it."""
        now = self._clock.seconds()
        self._gone = {one: known for one, known in self._gone.items() if known[0] > now}
        self._gone.setdefault(log, (now + _GONE, entry, revision))

    async def place(self, former: FormerNumbers, number: int) -> Position:
        """See ``IdentitySharing``; raises the same errors."""
        if not former.log:
            return 0
        if former.log == self.log:
            return number - former.shift
        points, _ = await self.points_of(former.log)
        position = position_at(points.points, number - former.shift)
        return 0 if position is None else await self._positions.local(position)
