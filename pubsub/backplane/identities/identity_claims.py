"""``IdentityClaims``: how a broker gets an identity that another one has, or that nobody has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import Deferred

from pubsub.backplane.identities.identity_entry import (
    IdentityEntry,
    WantedIdentity,
    claim_key,
    decode_identity,
    encode_claim,
    encode_identity,
    identity_key,
)
from pubsub.backplane.identities.identity_values import KEPT
from pubsub.backplane.state.broker_requests import BrokerRequests
from pubsub.backplane.state.outdated import Outdated
from pubsub.broker.clients.identity_sharing import (
    ClaimedIdentity,
    FormerNumbers,
    IdentityClaim,
    IdentityContent,
)
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from pubsub.backplane.identities.log_numbers import LogNumbers
    from pubsub.backplane.sessions.session_positions import SessionPositions
    from pubsub.backplane.state.shared_state import ISharedState
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.store.shared_store import SharedStore

_ATTEMPTS = 4
# Seconds for which a request is kept: a broker that was away looks at each identity by itself.
_REQUESTED = 600
# Former numbers of an identity. With an older one a client gets all messages that are stored.
_FORMER = 8


class Claimed(NamedTuple):
    """An identity with the revision of its value; ``moved`` if another broker had it."""

    identity: ClaimedIdentity
    revision: int
    moved: bool


class _FoundIdentity(NamedTuple):
    entry: IdentityEntry
    revision: int


class IdentityClaims:
    """Claims identities for the broker with ``store``; ``bounded`` gives a request a deadline."""

    def __init__(
        self,
        state: ISharedState,
        numbers: LogNumbers,
        positions: SessionPositions,
        store: SharedStore,
        bounded: Callable[[Deferred[Any]], Deferred[Any]],
        clock: Any,
    ) -> None:
        self._state, self._numbers, self._positions = state, numbers, positions
        self._store, self._bounded = store, bounded
        # A broker that did not answer is known by the revision of its points.
        self._requests = BrokerRequests(state, bounded, clock)

    async def find(self, name: str) -> _FoundIdentity | None:
        """Return the value of an identity; raises BackplaneAway or MalformedEntry."""
        found = await self._bounded(self._state.get(identity_key(name)))
        return (
            None if found is None else _FoundIdentity(decode_identity(found.value), found.revision)
        )

    async def own_revision(self, name: str, requested: int) -> int:
        """Return the revision of an identity that this broker has had since before its start.

        0 if it has not, or if its value was written after the request with the other revision.
        """
        found = await self.find(name)
        if found is None or found.revision > requested:
            return 0
        entry = found.entry
        is_mine = entry.log == self._numbers.log and entry.top is None and not entry.ended
        return found.revision if is_mine else 0

    async def claim(self, claim: IdentityClaim, mine: IdentityContent | None) -> Claimed | None:
        """See ``IdentitySharing``; raises MalformedEntry, too. ``mine`` is what is here of it."""
        for _ in range(_ATTEMPTS):
            found = await self.find(claim.name)
            if found is not None and not found.entry.ended and found.entry.log != self._numbers.log:
                claim.check(found.entry.content)
                found = await self._asked(found, claim)
                if found is None:
                    continue
            content, places = await self._content(found, claim, mine)
            if content is None:
                return None
            claimed = await self._put(claim.name, found, ClaimedIdentity(content, places))
            if claimed is not None:
                return claimed
        raise BackplaneAway("other brokers change the identity at the same time")

    async def _content(
        self, found: _FoundIdentity | None, claim: IdentityClaim, mine: IdentityContent | None
    ) -> tuple[IdentityContent | None, Mapping[int, Position]]:
        """Return the identity as it is to be here; None if there is none."""
        if found is None:
            return mine or claim.new, {}
        entry, is_mine = found.entry, found.entry.log == self._numbers.log
        if not entry.ended:
            if not is_mine:
                return await self._moved(entry)
            if entry.top is None:
                return mine or entry.content, {}
            return entry.content, {}
        if is_mine and mine is not None:
            # It was made again, or its end was not carried out here.
            return mine, {}
        if claim.new is None:
            return None, {}
        # Clients may have numbers of the identity that has ended.
        numbers = entry.content if is_mine else (await self._moved(entry))[0]
        new = claim.new
        return (
            IdentityContent(new.opened, new.owner, new.channels, numbers.shift, numbers.former),
            {},
        )

    async def _put(
        self, name: str, found: _FoundIdentity | None, identity: ClaimedIdentity
    ) -> Claimed | None:
        """Write that the identity is here; None if another broker was first.

        The value is written in any case: a broker that is about to take it is refused then.
        """
        value = encode_identity(IdentityEntry(self._numbers.log, identity.content))
        revision = 0 if found is None else found.revision
        try:
            put = self._state.put(identity_key(name), value, revision, KEPT)
            revision = await self._bounded(put)
        except Outdated:
            return None
        moved = found is not None and found.entry.log != self._numbers.log
        return Claimed(identity, revision, moved)

    # Identities of other brokers

    async def _moved(self, entry: IdentityEntry) -> tuple[IdentityContent, Mapping[int, Position]]:
        """Return an identity of another broker, as it continues here."""
        before, log = entry.content, entry.log
        top = entry.top
        if top is None:
            top = await self._numbers.limit_of(log) + before.shift
        former = before.former
        if top > (former[-1].until if former else 0):
            former = _newest((*former, FormerNumbers(top, log, before.shift)))
        # All numbers of this log are larger.
        shift = max(top, former[-1].until if former else 0) - self._store.first_offset
        places = {}
        if entry.known is not None:
            places[entry.known.number] = await self._positions.local(entry.known.position)
        content = IdentityContent(before.opened, before.owner, before.channels, shift, former)
        return content, places

    async def _asked(self, found: _FoundIdentity, claim: IdentityClaim) -> _FoundIdentity | None:
        """Ask the broker that has the identity for it; return the value then.

        None if that is to be tried again.
        """
        log = found.entry.log
        points, at = await self._numbers.points_of(log)
        if found.entry.top is not None:
            return found
        # It is to know before its limit is read (see ``LogNumbers``), also if it has stopped and
        # begins again.
        await self._request(log, WantedIdentity(claim.name, claim.after))
        if points.stopped or self._requests.is_silent(log, at):
            self._numbers.is_gone(log, points, at)
            return await self._again(found, claim.name)
        answer = self._requests.wait_for_answer()
        while await answer.look_again():
            present = await self._again(found, claim.name)
            if present is None or present.entry.top is not None:
                return present
        self._requests.note_silent(log, (await self._numbers.points_of(log))[1])
        return await self._again(found, claim.name)

    async def _again(self, before: _FoundIdentity, name: str) -> _FoundIdentity | None:
        """Return the value if the broker that was asked has not written it, or gives it up.

        If it has written it otherwise, it may have been started again since, without knowing of the
        request.
        """
        found = await self.find(name)
        if found is None or found.entry.log != before.entry.log:
            return None
        is_answer = found.entry.top is not None or found.revision == before.revision
        return found if is_answer else None

    async def _request(self, log: str, wanted: WantedIdentity) -> None:
        key = claim_key(log, wanted.name)
        if not await self._requests.put(key, encode_claim(wanted), _REQUESTED):
            raise BackplaneAway("other brokers request the identity at the same time")


def _newest(former: tuple[FormerNumbers, ...]) -> tuple[FormerNumbers, ...]:
    """Return the newest of ``former``; numbers before them are of no log."""
    excess = len(former) - _FORMER
    if excess <= 0:
        return former
    return (FormerNumbers(former[excess].until, "", 0), *former[excess + 1 :])
