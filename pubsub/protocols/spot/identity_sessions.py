"""The sessions of spot's clients with an identity (spot §3.5), at this broker or from another one.

A program does not know that its socket has connected again: it goes on with the subscriptions of
its last connection. Names are not proved, so a client never ends the connection of another one: it
continues a session whose connection is lost, or whose broker does not answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred

from pubsub.broker.clients.session_sharing import SessionContent, known_topics
from pubsub.errors import Refused
from pubsub.protocols.spot.prefixes import Prefixes
from pubsub.protocols.spot.subscriptions import KeptSubscriptions, Subscriptions

if TYPE_CHECKING:
    from pubsub.broker.clients.sessions import Session
    from pubsub.broker.credentials.identity import Identity
    from pubsub.broker.delivery.backlog import PendingMessages
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.protocols.spot.zmtp_handshake import Handshake

# Has the position of all topics of a session that have none of their own; no topic's name is empty.
_OTHERS = ""


class _IdentityOwner:
    """The owner of any session: a second client with the same identity displaces nothing."""

    def displaced(self) -> None:
        """See ``SessionOwner``."""


_IDENTITY_OWNER = _IdentityOwner()


def content_of(kept: KeptSubscriptions, connected: bool = False) -> SessionContent:
    """Return ``kept`` for other brokers; ``connected`` is true while the client is."""
    behind = {topic.name: at for topic, at in kept.positions.items()}
    prefixes = [prefix.decode("latin-1") for prefix in sorted(kept.prefixes)]
    notes = {"names": json.dumps(sorted(kept.names)), "prefixes": json.dumps(prefixes)}
    if connected:
        return SessionContent((_OTHERS,), behind, notes)
    return SessionContent((), {**behind, _OTHERS: kept.end}, notes)


def kept_of(content: SessionContent, make: Callable[[str], Topic]) -> KeptSubscriptions | None:
    """Return the subscriptions of ``content``, which another broker has written; None if malformed.

    ``make`` returns a topic, or raises Refused if it cannot be here.
    """
    try:
        names, prefixes = (json.loads(content.notes[name]) for name in ("names", "prefixes"))
        begins = Prefixes([one.encode("latin-1") for one in prefixes])
        return KeptSubscriptions(
            frozenset(map(str, names)), begins, known_topics(content, make), content.behind[_OTHERS]
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


class _SessionClient(Protocol):
    """The connection of a client."""

    handshake: Handshake

    @property
    def identity(self) -> Identity:
        """The name that the client has proved."""

    @property
    def is_node(self) -> bool:
        """True if the client is a broker of this kind."""

    @property
    def closing(self) -> bool:
        """True if no more requests are carried out."""

    def refuse(self, reason: str) -> None:
        """Count a refused request."""

    def wait_for(self, done: Deferred[Any]) -> None:
        """Handle no input before ``done`` fires."""


class _NamedClient(NamedTuple):
    """The client of a connection: ``client`` is its name among those of one ``kind``."""

    kind: Hashable
    client: bytes
    key: str


class ClientSession:
    """The session that one connection uses. Other brokers find it by ``key``, if it is not empty.

    Of several connections with one identity, the first shares its session.
    """

    def __init__(self, listener: Listener, session: Session, key: str) -> None:
        self._sessions = listener.sessions
        self._session = session
        self._key = key

    @property
    def kept(self) -> KeptSubscriptions | None:
        """The subscriptions of the client's last connection."""
        kept = self._session.state
        assert kept is None or isinstance(kept, KeptSubscriptions)
        return kept

    @property
    def shared_keys(self) -> tuple[str, ...]:
        """See ``Connection.shared_sessions``."""
        return (self._session.key,) if self._session.key else ()

    def changed(self, subscriptions: Subscriptions) -> None:
        """The subscriptions of the connection have changed."""
        sessions, session, sharing = self._sessions, self._session, self._sessions.sharing
        if sharing is None or not sessions.keeps(session):
            return
        if subscriptions.is_empty:
            if session.key:
                sharing.end(session.key)
                session.key = ""
        elif session.key or not sharing.has(self._key):
            content = partial(_content_of_connected, subscriptions)
            sessions.share(session, session.key or self._key, content, movable=False)

    def share_again(self, subscriptions: Subscriptions) -> None:
        """Share the session if another one had the key before."""
        if not self._session.key:
            self.changed(subscriptions)

    def continue_with(self, kept: KeptSubscriptions) -> None:
        """Take the place of the session that had ``kept`` at another broker."""
        self._session.state = kept
        content = content_of(kept)
        self._sessions.share(self._session, self._key, lambda: content, movable=False)

    def closed(self, subscriptions: Subscriptions, outbox: Outbox | None) -> None:
        """The connection has ended."""
        pending = None if outbox is None else outbox.pending()
        is_kept = self._sessions.keeps(self._session)
        self._end(subscriptions.end() if is_kept else None, pending)

    def keep(self) -> None:
        """The client has left before the session began."""
        self._end(self.kept if self._sessions.keeps(self._session) else None)

    def _end(self, kept: KeptSubscriptions | None, pending: PendingMessages | None = None) -> None:
        session = self._session
        session.state = kept
        if kept is None:
            self._sessions.close(session)
        else:
            content = partial(content_of, kept)
            self._sessions.detach(session, kept.positions, pending, kept.nbytes, content)


def _content_of_connected(subscriptions: Subscriptions) -> SessionContent:
    kept = subscriptions.kept()
    if kept is None:
        return SessionContent()
    return content_of(kept, subscriptions.are_restored)


class ClientSessions:
    """Opens the sessions of the clients of ``listener``."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        # By key, the clients that wait for a session.
        self._taking: dict[str, list[_WaitingClient]] = {}

    def open(
        self, connection: _SessionClient, begin: Callable[[ClientSession | None], None]
    ) -> None:
        """Call ``begin`` with the session of a client, maybe later; None if it has none.

        Other input of the client waits until then.
        """
        named = self._identify(connection)
        if named is None:
            begin(None)
            return
        sessions = self._listener.sessions
        session = sessions.absent(named.kind, named.client)
        if session is not None:
            sessions.resume(session, _IDENTITY_OWNER)
            begin(ClientSession(self._listener, session, named.key))
        elif sessions.sharing is None or sessions.sharing.has(named.key):
            begin(self._open_new(connection, named))
        else:
            self._take(connection, named, begin)

    def _identify(self, connection: _SessionClient) -> _NamedClient | None:
        listener = self._listener
        identity = connection.handshake.metadata.get(b"identity", b"")
        if not identity or connection.is_node:
            return None
        kind, name = "spot", connection.identity.name.encode()
        if name:
            # Of the clients with this name; no other user has it.
            kind, identity = "spot-named", len(name).to_bytes(2, "big") + name + identity
        sharing = listener.sessions.sharing
        key = "" if sharing is None else sharing.key(listener, kind.encode(), identity)
        return _NamedClient(listener.session_kind(kind), identity, key)

    def _take(
        self,
        connection: _SessionClient,
        named: _NamedClient,
        begin: Callable[[ClientSession | None], None],
    ) -> None:
        """Continue a session of another broker, if there is one."""
        sharing, key = self._listener.sessions.sharing, named.key
        assert sharing is not None
        # There is room for it here, or it stays at the other broker.
        session = self._open_new(connection, named)
        if session is None:
            begin(None)
            return
        waiter = _WaitingClient(connection, session, begin, Deferred())
        waiters = self._taking.setdefault(key, [])
        waiters.append(waiter)
        if len(waiters) == 1:

            def taken(content: SessionContent | None) -> None:
                del self._taking[key]
                self._give(key, waiters, content)

            wanted = partial(_is_one_connected, waiters)
            sharing.take(key, displace=False, wanted=wanted).addCallback(taken)
        if not waiter.done.called:
            connection.wait_for(waiter.done)

    def _give(
        self, key: str, waiters: Sequence[_WaitingClient], content: SessionContent | None
    ) -> None:
        """Begin the sessions of ``waiters``; one of them continues with ``content``."""
        topics, sharing = self._listener.topics, self._listener.sessions.sharing
        kept = None
        if content is not None:
            kept = kept_of(content, lambda name: topics.create(name, hosted=False))
            if kept is None and sharing is not None:
                sharing.end(key)
        # If all have left meanwhile, the client may come back.
        chosen = next((one for one in waiters if not one.connection.closing), waiters[0])
        for one in waiters:
            if one is chosen and kept is not None:
                one.session.continue_with(kept)
            if one.connection.closing:
                one.session.keep()
            else:
                one.begin(one.session)
            one.done.callback(None)

    def _open_new(self, connection: _SessionClient, named: _NamedClient) -> ClientSession | None:
        sessions = self._listener.sessions
        try:
            session = sessions.open(named.kind, named.client, _IDENTITY_OWNER)
        except Refused as refused:
            connection.refuse(refused.reason)
            return None
        return ClientSession(self._listener, session, named.key)


class _WaitingClient(NamedTuple):
    """A client that waits until it is known whether another broker has its session."""

    connection: _SessionClient
    session: ClientSession
    begin: Callable[[ClientSession | None], None]
    done: Deferred[None]


def _is_one_connected(waiters: Sequence[_WaitingClient]) -> bool:
    return any(not one.connection.closing for one in waiters)
