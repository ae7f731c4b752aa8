"""``Leases``: signs of life of brokers, which show whose exclusive topics are free.

A broker with exclusive topics has a lease: a value of the shared state with a number that it
changes again and again. Another broker that has seen no change for most of the lease's time asks
for one, by a change of the value, and ends the lease if there is none in the rest of the time. Both
are on condition that the value is still the one that it has seen. No clocks are compared: each
broker measures how long it sees nothing, and starts again whenever it has reached the engine. The
question shows that values can be changed, so no lease ends because the engine is away.

A broker whose lease was ended finds that out by its next change. It never begins that lease again,
but another one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import in_time
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.backplane.state.shared_state import ISharedState, StateEntry

log = Logger()
LEAST, MOST = 10.0, 3600.0
"""The limits of the time of a lease, in seconds."""
_PREFIX = "b."
_VERSION = 1
# NATS removes a lease so long after its last change.
_KEPT = 24 * 3600
# The parts of the time after which a broker changes its lease, up to which it needs no other change
# before it creates an exclusive topic, and after which others ask for one.
_RENEWED, _FRESH, _ASKED = 1 / 6, 1 / 3, 2 / 3


class LeaseValue(NamedTuple):
    """The value of a lease: its time in seconds, and the number of its last change.

    ``asked`` and ``ended`` are set by other brokers, ``ended`` also by its own when it stops.
    """

    seconds: float
    number: int
    asked: bool = False
    ended: bool = False

    def encode(self) -> bytes:
        """Return the value of the key."""
        members: dict[str, object] = {"v": _VERSION, "seconds": self.seconds, "number": self.number}
        members |= {name: True for name in ("asked", "ended") if getattr(self, name)}
        return json.dumps(members, separators=(",", ":")).encode()


def decode_lease(value: bytes | None) -> LeaseValue | None:
    """Return the value; None if no broker of this version has written it."""
    try:
        found = json.loads(value or b"")
        seconds, number = float(found["seconds"]), int(found["number"])
        if found["v"] != _VERSION or not LEAST <= seconds <= MOST:
            return None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
    return LeaseValue(seconds, number, found.get("asked") is True, found.get("ended") is True)


class _Sign(NamedTuple):
    """The last value of a lease that was seen, and when; ``revision`` is 0 without one."""

    revision: int
    since: float
    value: LeaseValue


class Leases:
    """The leases in ``state``, and this broker's own, ``id``, of ``seconds``.

    ``clock`` is the reactor. ``elapsed`` returns seconds that also count while the computer sleeps.
    ``lost`` is called when this broker's lease was ended, and it has another id; ``ticked`` at
    short intervals while the shared state is there.
    """

    def __init__(
        self, state: ISharedState, clock: Any, elapsed: Callable[[], float], seconds: float
    ) -> None:
        self._state, self._clock, self._elapsed = state, clock, elapsed
        self._seconds = seconds
        self.id = _new_id()
        self.former: set[str] = set()
        """The ids of leases that this broker had before."""
        self.lost: Callable[[], object] = lambda: None
        self.ticked: Callable[[], object] = lambda: None
        self.losses = 0
        self._revision = self._number = 0
        # When this broker's lease was changed last.
        self._changed = -inf
        self._has_begun = self._is_complete = self._is_asked = False
        self._signs: dict[str, _Sign] = {}
        self._turn = DeferredLock()
        self._timer: Any = None

    def open(self) -> None:
        """Begin to follow the leases."""
        self._state.open(self)
        self._schedule()

    async def close(self) -> None:
        """The broker stops, and has no exclusive topics any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await in_time(self._turn.acquire(), self._clock)
        try:
            if self._has_begun:
                self._has_begun = False
                ended = LeaseValue(self._seconds, self._number, ended=True)
                await self._put(self.id, ended, self._revision)
        finally:
            self._turn.release()

    # This broker

    async def hold(self) -> str:
        """Return the id of this broker's lease, which begins if there is none.

        Others will not have ended it before a change that is requested now is answered, or has
        failed. Raises BackplaneAway.
        """
        for _ in range(2):
            # The first time it may find that the lease was ended.
            if self._is_due(_FRESH):
                await self._renew()
        if self._is_due(_FRESH):
            raise BackplaneAway("the lease of this broker was ended")
        return self.id

    def _is_due(self, part: float) -> bool:
        return not self._has_begun or self._elapsed() - self._changed >= self._seconds * part

    async def _renew(self) -> None:
        await in_time(self._turn.acquire(), self._clock)
        try:
            id, began, revision = self.id, self._elapsed(), 0
            # Unless that was done meanwhile.
            while (began >= self._changed + self._seconds * _RENEWED or self._is_asked) and (
                not revision and id == self.id
            ):
                revision = await self._change(id)
            if revision and id == self.id:
                self._revision, self._has_begun, self._is_asked = revision, True, False
                self._changed = began
        finally:
            self._turn.release()

    async def _change(self, id: str) -> int:
        """Return the new revision; 0 if another one is to be replaced, or the lease was ended."""
        self._number += 1
        try:
            return await self._put(id, LeaseValue(self._seconds, self._number), self._revision)
        except Outdated as outdated:
            found = decode_lease(outdated.value)
            if id != self.id:
                pass
            elif found is None or found.ended or outdated.revision <= self._revision:
                self._lose()
            else:
                # Another broker has asked, or the answer to an earlier change did not arrive.
                self._revision = outdated.revision
            return 0

    def _put(self, id: str, value: LeaseValue, expected: int) -> Deferred[int]:
        done = self._state.put(_PREFIX + id, value.encode(), expected, _KEPT)
        return in_time(done, self._clock)

    def _lose(self) -> None:
        self.losses += 1
        self.begin_again()
        self.lost()

    def begin_again(self) -> None:
        """Give up this broker's lease for another one, which begins when it is needed."""
        self.former.add(self.id)
        self.id, self._revision, self._changed = _new_id(), 0, -inf
        self._has_begun = self._is_asked = False

    def _schedule(self) -> None:
        self._timer = self._clock.callLater(min(1.0, self._seconds / 12), self._tick)

    def _tick(self) -> None:
        self._schedule()
        if self._is_complete:
            self._renew_if_due()
            self.ticked()

    def _renew_if_due(self) -> None:
        is_due = self._is_due(_RENEWED) or self._is_asked
        if self._has_begun and is_due and not self._turn.locked:
            Deferred.fromCoroutine(self._renew()).addErrback(_failed)

    # StateWatcher

    def state_changed(self, entries: Sequence[StateEntry]) -> None:
        """See ``StateWatcher``."""
        for key, value, revision in entries:
            if key.startswith(_PREFIX):
                self._see(key[len(_PREFIX) :], value, revision)

    def state_complete(self) -> None:
        """See ``StateWatcher``."""
        self._is_complete = True
        now = self._elapsed()
        self._signs = {id: sign._replace(since=now) for id, sign in self._signs.items()}
        # The others may have waited for a sign for long, or have ended the lease.
        self._is_asked = self._has_begun
        self._renew_if_due()

    def state_away(self) -> None:
        """See ``StateWatcher``."""
        self._is_complete = False

    def _see(self, id: str, value: bytes, revision: int) -> None:
        known = self._signs.get(id)
        if id == self.id:
            self._see_own(decode_lease(value), revision)
        elif known is None or revision > known.revision:
            self._note(id, value, revision)

    def _see_own(self, found: LeaseValue | None, revision: int) -> None:
        if found is None or not self._has_begun or revision <= self._revision:
            return
        if found.ended:
            self._lose()
        elif found.asked:
            self._is_asked = True
            self._renew_if_due()

    def _note(self, id: str, value: bytes | None, revision: int) -> None:
        found = decode_lease(value) or LeaseValue(self._seconds, 0)
        self._signs[id] = _Sign(revision, self._elapsed(), found)

    # Other brokers

    def has_ended(self, id: str) -> bool:
        """Return whether the lease ``id`` is over, so that its topics are free."""
        sign = self._signs.get(id)
        return id in self.former or (sign is not None and sign.value.ended)

    def silent(self, owners: Collection[str]) -> list[str]:
        """Return the leases to ``advance``, of those that are known and of ``owners``."""
        now = self._elapsed()
        for id, sign in list(self._signs.items()):
            if (sign.value.ended or not sign.revision) and id not in owners:
                del self._signs[id]
        for id in owners:
            if id not in self._signs and id != self.id:
                self._signs[id] = _Sign(0, now, LeaseValue(self._seconds, 0))
        return [
            id
            for id, sign in self._signs.items()
            if id != self.id and (id in self.former or now - sign.since >= _lease_time(sign.value))
        ]

    async def advance(self, id: str) -> bool:
        """Ask for a change of the lease ``id``, or end it; return whether it is over.

        Then its topics are to be released: by the broker that has ended it, and by others only if
        that has not been done some time later.
        """
        sign = self._signs[id]
        if sign.value.ended:
            return True
        is_over = sign.value.asked or id in self.former
        value = sign.value._replace(asked=True, ended=is_over)
        try:
            revision = await self._put(id, value, sign.revision)
        except Outdated as outdated:
            self._note(id, outdated.value, outdated.revision)
            return False
        self._note(id, value.encode(), revision)
        return is_over


def _lease_time(value: LeaseValue) -> float:
    is_asked = value.asked or value.ended
    return value.seconds * (1 - _ASKED if is_asked else _ASKED)


def _new_id() -> str:
    return secrets.token_hex(8)


def _failed(failure: Failure) -> None:
    if failure.check(BackplaneAway) is None:
        log.failure("backplane: changing the lease of this broker has failed", failure)
