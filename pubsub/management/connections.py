"""Sessions: the connections of clients, over every protocol, in the order of their marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol, cast

from pubsub.broker.clients.connection_marks import mark_of, mark_text
from pubsub.broker.figures.connection_figures import (
    CATCHING_UP,
    LEAVING,
    LIVE,
    PAUSED,
    ConnectionFigures,
)

if TYPE_CHECKING:
    from pubsub.broker.clients.client_registry import ClientRegistry
    from pubsub.broker.credentials.identity import Identity
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.management.listing import Row

STATES = (LIVE, CATCHING_UP, PAUSED, LEAVING)
"""The states of a session."""


class _SessionListener(Protocol):
    event_protocol: str
    endpoint: str


class ListedConnection(Protocol):
    """A connection of a client, as lists show it. ``label`` is its name in events and the log."""

    mark: int

    @property
    def listener(self) -> _SessionListener: ...

    @property
    def label(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def identity(self) -> Identity: ...

    def outboxes(self) -> Iterable[Outbox]:
        """Return the outboxes in which the messages to the client wait."""

    def figures(self) -> ConnectionFigures:
        """Return the figures of the connection: messages published and sent, and its lag."""

    def dismiss(self, reason: str) -> None:
        """See ``ConnectedClient``."""


def connection_of(clients: ClientRegistry, mark: str) -> ListedConnection | None:
    """Return the session with this mark, if there is one."""
    number = mark_of(mark)
    client = None if number is None else clients.get(number)
    return cast("ListedConnection", client) if client is not None and client.is_listed else None


def connections_after(clients: ClientRegistry, mark: str) -> Iterator[ListedConnection | None]:
    """Yield the sessions behind ``mark`` (empty: all); None for other connections."""
    for client in clients.after(mark_of(mark) or 0):
        yield cast("ListedConnection", client) if client.is_listed else None


def connection_row(session: ListedConnection, figures: ConnectionFigures | None = None) -> Row:
    """Return the row of a session, with its present ``figures``.

    No session id of a wire is in it.
    """
    return {
        "mark": mark_text(session.mark),
        "protocol": session.listener.event_protocol,
        "client": session.label,
        "identity": session.identity.name,
        "address": session.peer,
        "connected": session.mark,
        **asdict(figures or session.figures()),
    }


def session_filter(
    protocol: str | None, state: str | None, patterns: Sequence[Callable[[str], bool]]
) -> Callable[[ListedConnection | None], Row | None]:
    """Return a function that makes the row of a session, or None unless it fits all of these."""

    def row_of(session: ListedConnection | None) -> Row | None:
        if session is None or protocol not in (None, session.listener.event_protocol):
            return None
        if not all(matches(session.label) for matches in patterns):
            return None
        # The state is looked at first, as a list may pass over a hundred thousand others.
        figures = session.figures()
        return connection_row(session, figures) if state in (None, figures.state) else None

    return row_of
