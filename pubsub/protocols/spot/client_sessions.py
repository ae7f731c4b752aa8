"""The sessions of spot's clients with an identity (spot §3.5), at this broker or from another one.

A program does not know that its socket has connected again: it goes on with the subscriptions of
its last connection. Names are not proved, so a client never ends the connection of another one: it
continues a session whose connection is lost, or whose broker does not answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pubsub.broker.session_sharing import SessionContent, known_topics
from pubsub.errors import Refused
from pubsub.protocols.spot.prefixes import Prefixes
from pubsub.protocols.spot.subscriptions import KeptSubscriptions, Subscriptions

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.identity import Identity
    from pubsub.broker.listener import Listener
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.sessions import Session
    from pubsub.broker.topics import Topic
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
    except (ValueError, KeyError, TypeError, AttributeError):
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
        if subscriptions.kept() is None:
            if session.key:
                sharing.end(session.key)
                session.key = ""
        elif session.key:
            session.content = partial(_content_of_connected, subscriptions)
            sessions.changed(session)
        elif not sharing.has(self._key):
            content = partial(_content_of_connected, subscriptions)
            sessions.share(session, self._key, content, movable=False)

    def closed(self, subscriptions: Subscriptions, outbox: Outbox | None) -> None:
        """The connection has ended."""
        sessions, session = self._sessions, self._session
        pending = None if outbox is None else outbox.pending()
        kept = subscriptions.end() if sessions.keeps(session) else None
        session.state = kept
        if kept is None:
            sessions.close(session)
        else:
            content = partial(content_of, kept)
            sessions.detach(session, kept.positions, pending, kept.nbytes, content)

    def keep(self) -> None:
        """The client has left before its subscriptions were restored."""
        kept = self.kept
        if kept is None or not self._sessions.keeps(self._session):
            self._sessions.close(self._session)
        else:
            content = partial(content_of, kept)
            self._sessions.detach(self._session, kept.positions, None, kept.nbytes, content)


def _content_of_connected(subscriptions: Subscriptions) -> SessionContent:
    kept = subscriptions.kept()
    if kept is None:
        return SessionContent()
    return content_of(kept, subscriptions.are_restored)


class ClientSessions:
    """Opens the sessions of the clients of ``listener``."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

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
            begin(self._begin_session(connection, named, None))
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
        sharing = self._listener.sessions.sharing
        assert sharing is not None
        is_here = False

        def taken(content: SessionContent | None) -> None:
            nonlocal is_here
            is_here = True
            if not connection.closing:
                begin(self._begin_session(connection, named, content))
            elif content is not None:
                # The client has left meanwhile, and may come back.
                self._leave(connection, named, content)

        done = sharing.take(named.key, displace=False).addCallback(taken)
        if not is_here:
            connection.wait_for(done)

    def _begin_session(
        self, connection: _SessionClient, named: _NamedClient, content: SessionContent | None
    ) -> ClientSession | None:
        """Return a new session, with the ``content`` of one of another broker."""
        listener, sessions = self._listener, self._listener.sessions
        kept = None
        if content is not None:
            kept = kept_of(content, lambda name: listener.topics.create(name, hosted=False))
        try:
            session = sessions.open(named.kind, named.client, _IDENTITY_OWNER)
        except Refused as refused:
            connection.refuse(refused.reason)
            session = None
        if content is not None and sessions.sharing is not None:
            if session is None or kept is None:
                sessions.sharing.end(named.key)
            else:
                content = content_of(kept)
                sessions.share(session, named.key, lambda: content, movable=False)
        if session is None:
            return None
        session.state = kept
        return ClientSession(listener, session, named.key)

    def _leave(
        self, connection: _SessionClient, named: _NamedClient, content: SessionContent
    ) -> None:
        """Keep a session that was another broker's for a client that has left again."""
        opened = self._begin_session(connection, named, content)
        if opened is not None:
            opened.keep()
