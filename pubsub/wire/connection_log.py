"""Lines of the level debug for each connection that begins and ends.

They are off by default. ``Listener.logs_connections`` says whether they are on, so that nothing is
formatted or published when they are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

if TYPE_CHECKING:
    from pubsub.broker.clients.connection_marks import Marked
    from pubsub.broker.listeners.listener import Listener

NAMESPACE = __name__
"""The namespace whose level turns these lines on."""
log = Logger()


def log_opened(listener: Listener, connection: Marked) -> None:
    """Log that a connection was admitted."""
    log.debug(
        "{protocol} connection opened on {endpoint}",
        protocol=listener.event_protocol,
        endpoint=listener.endpoint,
        connection=connection.log_fields(),
    )


def log_closed(listener: Listener, connection: Marked, client: str, reason: str) -> None:
    """Log that an admitted connection has ended."""
    log.debug(
        "{protocol} connection of {client!r} closed: {reason}",
        protocol=listener.event_protocol,
        client=client,
        reason=reason,
        connection=connection.log_fields(),
    )
