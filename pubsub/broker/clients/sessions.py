"""Sessions: random 64-bit ids, resumption within a window, takeover, limits."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pubsub.broker.clients.session_sharing import SessionContent
from pubsub.broker.compact_map import EMPTY_MAP
from pubsub.errors import LimitReached, SessionUnknown

if TYPE_CHECKING:
    from pubsub.broker.clients.identity_sharing import IdentitySharing
    from pubsub.broker.clients.session_sharing import SessionSharing
    from pubsub.broker.delivery.backlog import PendingMessages
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.figures.traffic import Traffic
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic

# Estimated cost of a session and of a topic of a detached one, for the memory budget.
SESSION_BYTES = 768
TOPIC_BYTES = 128


class SessionOwner(Protocol):
    """The connection that uses a session."""

    def displaced(self) -> None:
        """Close, because another connection has resumed the session."""


@dataclass(slots=True, eq=False)
class Session:
    """The state that a client keeps across connections, for the length of the resume window.

    ``kind`` identifies the listener and the role; a session is only resumed with the same kind.
    ``owner`` is the connection that uses the session, None while it is detached. ``subscriptions``
    has the offset for each topic at which delivery stopped, ``state`` further state of the protocol
    to resume. ``charged`` are the bytes that both are charged with while the session is detached.
    ``pending`` are the messages that the client does not get unless it resumes the session. ``key``
    is that by which other brokers find it; empty if it is not shared. ``content`` returns the
    state that they need; ``movable`` is false if they may not take it while there is a connection.
    """

    id: int
    kind: Hashable
    client: bytes
    owner: SessionOwner | None
    subscriptions: Mapping[Topic, Position] = field(default_factory=lambda: EMPTY_MAP)
    state: object = None
    charged: int = 0
    pending: PendingMessages | None = None
    key: str = ""
    content: Callable[[], SessionContent] = SessionContent
    movable: bool = True


def _offsets_of(session: Session) -> SessionContent:
    return SessionContent((), {topic.name: at for topic, at in session.subscriptions.items()})


class _Shared:
    """See ``SharedClient``: ``session`` of ``registry``."""

    __slots__ = ("_registry", "_session")

    def __init__(self, registry: SessionRegistry, session: Session) -> None:
        self._registry = registry
        self._session = session

    @property
    def is_lost(self) -> bool:
        """See ``SharedClient``."""
        return self._session.owner is None

    @property
    def is_movable(self) -> bool:
        """See ``SharedClient``."""
        return self._session.movable

    @property
    def can_merge(self) -> bool:
        """See ``SharedClient``: a client of cafe is refused, one of spot keeps its connection."""
        return False

    def merge(self, content: SessionContent) -> Work:
        """See ``SharedClient``."""
        raise NotImplementedError

    def content(self) -> SessionContent:
        """See ``SharedClient``."""
        return self._session.content()

    def lose(self) -> Work:
        """See ``SharedClient``."""
        if self._session.owner is not None:
            self._session.owner.displaced()
        yield

    def forget(self) -> Work:
        """See ``SharedClient``."""
        session = self._session
        session.key = ""
        if session.movable or session.owner is None:
            yield from self.lose()
            self._registry.close(session)


class SessionRegistry:
    """Live and resumable sessions.

    ``draw`` returns a random 64-bit number and ``seconds`` is the clock. A session can be resumed
    for ``window`` seconds after its connection is lost (zero: not at all). ``limit`` bounds the
    number of sessions, live and detached. ``drop`` is ``Counters.drop``; it counts the messages
    that the client of a session that ends does not get.
    """

    def __init__(
        self,
        draw: Callable[[], int],
        seconds: Callable[[], float],
        window: float,
        limit: int,
        memory: MemoryBudget,
        drop: Callable[[str, str, str, int, object, Traffic | None], None],
    ) -> None:
        self._drop = drop
        self._draw = draw
        self._seconds = seconds
        self.window = window
        self.limit = limit
        self._memory = memory
        self._sessions: dict[int, Session] = {}
        # When each was detached. Insertion order is expiry order, as the window is that of all.
        # Not a dict: finding its first item takes longer the more items before it were deleted.
        self._detached: OrderedDict[Session, float] = OrderedDict()
        self._absent: dict[tuple[Hashable, bytes], Session] = {}
        self.sharing: SessionSharing | None = None
        """Shares sessions with other brokers, if anything does."""
        self.identities: IdentitySharing | None = None
        """Shares identities of nsd with other brokers, if anything does."""
        self.at_stop: list[Callable[[], object]] = []
        """Called when the broker stops, before it closes the connections."""
        self.numbers: Counter[Hashable] = Counter()
        """The sessions of each kind."""
        self.nbytes = 0
        """Bytes of the memory budget that all sessions are charged with."""

    def __len__(self) -> int:
        return len(self._sessions)

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply ``max-sessions`` and ``resume-window``, the latter also to lost sessions."""
        self.limit = settings["max-sessions"]
        self.window = settings["resume-window"]

    def open(self, kind: Hashable, client: bytes, owner: SessionOwner) -> Session:
        """Return a new session; raises LimitReached or MemoryExhausted."""
        number = self._draw()
        while not number or number in self._sessions:
            number = self._draw()
        return self._add(Session(number, kind, client, owner))

    def _add(self, session: Session) -> Session:
        if len(self._sessions) >= self.limit:
            self._make_room()
        self._memory.reserve(SESSION_BYTES)
        self._sessions[session.id] = session
        self.numbers[session.kind] += 1
        self.nbytes += SESSION_BYTES
        return session

    # Sessions of other brokers

    def check_room(self) -> None:
        """Raise LimitReached or MemoryExhausted if there is no room for one more session."""
        if len(self._sessions) >= self.limit and self._oldest() is None:
            raise LimitReached("sessions")
        self._memory.check()

    def adopt(
        self, number: int, kind: Hashable, client: bytes, owner: SessionOwner | None
    ) -> Session:
        """Return session ``number``, which was another broker's.

        Raises LimitReached, MemoryExhausted, or SessionUnknown if the number is taken.
        """
        if number in self._sessions:
            raise SessionUnknown(f"no session {client!r} of this kind")
        return self._add(Session(number, kind, client, owner))

    def share(
        self,
        session: Session,
        key: str,
        content: Callable[[], SessionContent],
        movable: bool = True,
    ) -> None:
        """Share ``session``, whose subscriptions are those of ``content`` from now on."""
        if self.sharing is not None:
            session.key, session.content, session.movable = key, content, movable
            self.sharing.share(key, _Shared(self, session))

    def changed(self, session: Session) -> None:
        """The subscriptions of ``session`` have changed."""
        if session.key and self.sharing is not None:
            self.sharing.share(session.key, _Shared(self, session))

    def find(self, number: int, kind: Hashable, client: bytes) -> Session:
        """Return this client's session ``number``, live or detached; raises SessionUnknown."""
        session = self._sessions.get(number) if self.window else None
        known = session is not None and not self._close_expired(session)
        if session is None or not known or session.kind != kind or session.client != client:
            raise SessionUnknown(f"no session {client!r} of this kind")
        return session

    def absent(self, kind: Hashable, client: bytes) -> Session | None:
        """Return the last detached session of this kind and client, if it can be resumed.

        For protocols whose clients present no session id, only a name.
        """
        session = self._absent.get((kind, client))
        return None if session is None or self._close_expired(session) else session

    def resume(self, session: Session, owner: SessionOwner) -> None:
        """Attach ``session`` to ``owner``; a connection that still uses it is closed first."""
        if session.owner is not None:
            session.owner.displaced()
        self._attach(session)
        session.owner = owner

    def detach(
        self,
        session: Session,
        subscriptions: Mapping[Topic, Position],
        pending: PendingMessages | None = None,
        state_bytes: int = 0,
        content: Callable[[], SessionContent] | None = None,
    ) -> None:
        """Keep a session whose connection is lost, to be resumed at these offsets.

        ``state_bytes`` are the estimated bytes of its ``state``. ``content`` returns what other
        brokers need; by default that is the offsets.
        """
        session.pending = pending
        if not self.window:
            self.close(session)
            return
        session.owner = None
        session.subscriptions = subscriptions
        topics = len(subscriptions) + (0 if pending is None else len(pending.counts))
        session.charged = state_bytes + TOPIC_BYTES * topics
        self._memory.add(session.charged)
        self.nbytes += session.charged
        self._detached[session] = self._seconds()
        self._absent[session.kind, session.client] = session
        session.content = partial(_offsets_of, session) if content is None else content
        self.changed(session)

    def close(self, session: Session) -> None:
        """End the session; its id becomes invalid, and its pending messages are dropped."""
        pending = session.pending
        self._attach(session)
        if pending is not None:
            for topic, count in pending.counts.items():
                self._drop(pending.label, topic.name, "expired", count, None, pending.traffic)
        if session.key and self.sharing is not None:
            self.sharing.end(session.key)
        if self._sessions.pop(session.id, None) is not None:
            self._memory.free(SESSION_BYTES)
            self.nbytes -= SESSION_BYTES
            self.numbers[session.kind] -= 1
            if not self.numbers[session.kind]:
                del self.numbers[session.kind]

    def _attach(self, session: Session) -> None:
        """Remove ``session`` from the detached ones."""
        self._detached.pop(session, None)
        session.pending = None
        nbytes, session.charged = session.charged, 0
        self._memory.free(nbytes)
        self.nbytes -= nbytes
        key = (session.kind, session.client)
        if self._absent.get(key) is session:
            del self._absent[key]

    def stop(self) -> None:
        """Keep no session from now on: the broker is stopping. Others may have them."""
        self.window = 0
        self.sharing = None
        for session in [session for session in self._detached if session.pending is not None]:
            self.close(session)
        for call in self.at_stop:
            call()

    def expire(self) -> Work:
        """Close the detached sessions whose window has passed, one a step."""
        while (oldest := self._oldest()) is not None and self._close_expired(oldest):
            yield

    def _close_expired(self, session: Session) -> bool:
        """Close ``session`` if its window has passed; return whether it has."""
        detached = self._detached.get(session)
        if detached is None or detached + self.window > self._seconds():
            return False
        self.close(session)
        return True

    def keeps(self, session: Session) -> bool:
        """Return whether ``detach`` would keep this session."""
        return self.window > 0 and session.id in self._sessions

    def _oldest(self) -> Session | None:
        """Return the detached session that expires first."""
        return next(iter(self._detached), None)

    def _make_room(self) -> None:
        oldest = self._oldest()
        if oldest is None:
            raise LimitReached("sessions")
        self.close(oldest)
