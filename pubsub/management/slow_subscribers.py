"""Slow subscribers: sessions whose transports take no more, or that read the history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pubsub.broker.figures.connection_figures import CATCHING_UP, PAUSED
from pubsub.management.connections import connection_row, connections_after

if TYPE_CHECKING:
    from pubsub.broker.clients.client_registry import ClientRegistry
    from pubsub.broker.delivery.cursors import Cursors
    from pubsub.broker.routing.router import Router
    from pubsub.management.connections import ListedConnection
    from pubsub.management.listing import Row


def slow_sessions(
    clients: ClientRegistry, router: Router, cursors: Cursors, mark: str
) -> Iterator[ListedConnection | None]:
    """Yield the sessions behind ``mark``, unless there is no slow subscriber at all.

    Not kept in an order of their own, as they become slow and are not slow any more all the time.
    """
    if router.slow or cursors.number:
        yield from connections_after(clients, mark)


def slow_row(session: ListedConnection) -> Row | None:
    """Return the row of a slow subscriber; None for another session."""
    if not any(box.paused or box.cursor for box in session.outboxes()):
        return None
    row = connection_row(session)
    return row if row["state"] in (CATCHING_UP, PAUSED) else None
