"""``SessionTaking``: how a broker gets a session that another one has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import Deferred

from pubsub.backplane.sessions.session_entry import (
    BrokerEntry,
    SessionEntry,
    broker_key,
    decode_broker,
    decode_session,
    encode_session,
    request_key,
    session_key,
)
from pubsub.backplane.state.broker_requests import BrokerRequests
from pubsub.backplane.state.outdated import Outdated
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from pubsub.backplane.sessions.session_positions import SessionPositions
    from pubsub.backplane.state.shared_state import ISharedState, StateEntry
    from pubsub.broker.clients.session_sharing import SessionContent

_ATTEMPTS = 3
# Seconds for which a value of a session that was taken is kept until its broker writes it.
_LASTING = 24 * 3600


class TakenSession(NamedTuple):
    """A session, and the revision of its value."""

    content: SessionContent
    revision: int


class SessionTaking:
    """Takes sessions for the broker ``run``; ``bounded`` gives a request a deadline."""

    def __init__(
        self,
        run: str,
        state: ISharedState,
        positions: SessionPositions,
        bounded: Callable[[Deferred[Any]], Deferred[Any]],
        clock: Any,
    ) -> None:
        self._run, self._state, self._positions = run, state, positions
        self._bounded = bounded
        # A broker that did not answer is known by the revision of its value.
        self._requests = BrokerRequests(state, bounded, clock)

    async def take(self, key: str, seconds: int, displace: bool = True) -> TakenSession | None:
        """Take the session of ``key``; None if there is none, or another broker was first.

        Without ``displace``, one that is connected to a broker that answers is not taken. A request
        for it is kept for ``seconds``. Raises BackplaneAway, HistoryUnavailable, or
        MalformedEntry.
        """
        for _ in range(_ATTEMPTS):
            found = await self._get(session_key(key))
            if found is None:
                return None
            released = await self._released(key, found, seconds, displace)
            if released is None:
                return None
            found, broker = released
            entry, revision = decode_session(found.value), found.revision
            position = None if broker is None else broker.position
            content = await self._positions.content(entry, position)
            mine = replace(entry, run=self._run, lost=False)
            if position is not None:
                mine = _placed(mine, position)
            try:
                value = encode_session(mine)
                put = self._state.put(session_key(key), value, revision, seconds + _LASTING)
                revision = await self._bounded(put)
            except Outdated:
                continue
            if entry.run != self._run:
                # It may have a copy.
                with suppress(BackplaneAway):
                    await self._request(entry.run, key, seconds)
            return TakenSession(content, revision)
        return None

    async def _released(
        self, key: str, found: StateEntry, seconds: int, displace: bool
    ) -> tuple[StateEntry, BrokerEntry | None] | None:
        """Return the value of a session that can be taken now, and its broker's if it is connected.

        ``found`` is the value before. None if it cannot be taken.
        """
        entry = decode_session(found.value)
        if entry.ended or entry.lost:
            return None if entry.ended else (found, None)
        broker, at = await self._broker(entry.run)
        # If it is this broker, the answer to an earlier attempt was lost.
        asks = broker is not None and not broker.stopped and entry.run != self._run
        if asks and not self._requests.is_silent(entry.run, at):
            before, asked = (found.revision, at), entry.run
            found = await self._ask(key, found, seconds, displace) or found
            entry = decode_session(found.value)
            if entry.run != asked:
                # Another broker has taken it meanwhile, which is to be asked in turn.
                return await self._released(key, found, seconds, displace)
            if entry.ended:
                return None
            # The messages that it had delivered when the session was last written.
            broker, at = await self._broker(entry.run)
            if not entry.lost:
                if not displace and (found.revision, at) != before:
                    # It has answered, or it is late and lives.
                    return None
                self._requests.note_silent(entry.run, at)
        if broker is None and not entry.lost:
            # Its time is over.
            return None
        return found, None if entry.lost else broker

    async def _get(self, key: str) -> StateEntry | None:
        found: StateEntry | None = await self._bounded(self._state.get(key))
        return found

    async def _broker(self, run: str) -> tuple[BrokerEntry | None, int]:
        found = await self._get(broker_key(run))
        return (None, 0) if found is None else (decode_broker(found.value), found.revision)

    async def _request(self, run: str, key: str, seconds: int) -> None:
        """Request the session from the broker ``run``."""
        await self._requests.put(request_key(run, key), self._run.encode(), seconds)

    async def _ask(
        self, key: str, before: StateEntry, seconds: int, displace: bool
    ) -> StateEntry | None:
        """Ask for a session that is connected; return its value once it is not, or at the end.

        Another broker may have taken it then. Without ``displace``, its broker writes the value
        again, which is an answer as well.
        """
        run = decode_session(before.value).run
        await self._request(run, key, seconds)
        found: StateEntry | None = None
        answer = self._requests.wait_for_answer()
        while await answer.look_again():
            found = await self._get(session_key(key))
            entry = None if found is None else decode_session(found.value)
            if entry is None or entry.lost or entry.ended or entry.run != run:
                break
            if not displace and found is not None and found.revision != before.revision:
                break
        return found


def _placed(entry: SessionEntry, position: Any) -> SessionEntry:
    """Return ``entry`` with all topics behind: the live ones at ``position``."""
    number = len(entry.positions)
    behind = {**entry.behind, **dict.fromkeys(entry.live, number)}
    return replace(entry, live=(), behind=behind, positions=(*entry.positions, position))
