"""Sessions: unguessable 64-bit ids, resumption within a window, takeover, limits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pubsub.broker.compact_map import EMPTY_MAP
from pubsub.errors import LimitReached, SessionUnknown

if TYPE_CHECKING:
    from pubsub.broker.limits import MemoryBudget
    from pubsub.broker.topics import Topic

# What a session costs, an estimate for the memory budget.
SESSION_BYTES = 768


class Owner(Protocol):
    """The connection that has a session."""

    def displaced(self) -> None:
        """Another connection has resumed the session: this one has to close."""


@dataclass(slots=True, eq=False)
class Session:
    """A client's place in the broker, which outlives its connection for the resume window.

    ``kind`` stands for the listener and the role: a session is resumed as what it was.
    ``owner`` is the connection that has the session now; None while it is detached.
    ``subscriptions`` has, for each topic, where in the history the client stopped receiving it,
    ``kept`` what else its protocol needs to go on.
    """

    id: int
    kind: Hashable
    client: bytes
    owner: Owner | None
    subscriptions: Mapping[Topic, int] = field(default_factory=lambda: EMPTY_MAP)
    kept: object = None


class SessionRegistry:
    """Live and resumable sessions.

    ``draw`` gives a random 64-bit number, ``seconds`` is the clock, ``window`` the seconds a
    broken session can be resumed for (zero: not at all), ``limit`` bounds both kinds together.
    """

    def __init__(
        self,
        draw: Callable[[], int],
        seconds: Callable[[], float],
        window: float,
        limit: int,
        memory: MemoryBudget,
    ) -> None:
        self._draw = draw
        self._seconds = seconds
        self._window = window
        self._limit = limit
        self._memory = memory
        self._sessions: dict[int, Session] = {}
        # When they expire, which is in the order they came in, as the window is the same for all.
        # A plain dict would look for the first of them past all that have left.
        self._detached: OrderedDict[Session, float] = OrderedDict()
        self._absent: dict[tuple[Hashable, bytes], Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, kind: Hashable, client: bytes, owner: Owner) -> Session:
        """A new session; raises LimitReached or MemoryExhausted."""
        if len(self._sessions) >= self._limit:
            self._make_room()
        self._memory.reserve(SESSION_BYTES)
        number = self._draw()
        while not number or number in self._sessions:
            number = self._draw()
        session = self._sessions[number] = Session(number, kind, client, owner)
        return session

    def find(self, number: int, kind: Hashable, client: bytes) -> Session:
        """The session ``number``, live or resumable, of this client; raises SessionUnknown."""
        self.expire()
        session = self._sessions.get(number) if self._window else None
        if session is None or session.kind != kind or session.client != client:
            raise SessionUnknown(f"no session {client!r} of this kind")
        return session

    def absent(self, kind: Hashable, client: bytes) -> Session | None:
        """The last session of this kind that this client left, if it can still be resumed.

        For protocols whose clients have nothing but their name to come back with.
        """
        self.expire()
        return self._absent.get((kind, client))

    def resume(self, session: Session, owner: Owner) -> None:
        """Give ``session`` to a new connection; one just found.

        One that still has a connection is taken over: the old connection is closed first.
        """
        if session.owner is not None:
            session.owner.displaced()
        self._found(session)
        session.owner = owner

    def detach(self, session: Session, subscriptions: Mapping[Topic, int]) -> None:
        """The connection is gone: keep the session for the window, to go on at these offsets."""
        if not self._window:
            self.close(session)
            return
        session.owner = None
        session.subscriptions = subscriptions
        self._detached[session] = self._seconds() + self._window
        self._absent[session.kind, session.client] = session

    def close(self, session: Session) -> None:
        """The session ends and its id means nothing any more."""
        self._found(session)
        if self._sessions.pop(session.id, None) is not None:
            self._memory.free(SESSION_BYTES)

    def _found(self, session: Session) -> None:
        """``session`` is detached no more."""
        self._detached.pop(session, None)
        key = (session.kind, session.client)
        if self._absent.get(key) is session:
            del self._absent[key]

    def stop(self) -> None:
        """The broker stops, and with it every session: none is kept from now on."""
        self._window = 0

    def expire(self) -> None:
        """Close the detached sessions whose window has passed."""
        now = self._seconds()
        while (oldest := self._oldest()) is not None and self._detached[oldest] <= now:
            self.close(oldest)

    def keeps(self, session: Session) -> bool:
        """Would ``detach`` keep this session?"""
        return self._window > 0 and session.id in self._sessions

    def _oldest(self) -> Session | None:
        """The detached session that expires first."""
        return next(iter(self._detached), None)

    def _make_room(self) -> None:
        oldest = self._oldest()
        if oldest is None:
            raise LimitReached("sessions")
        self.close(oldest)
