"""The admission of a connection by its listener, and the report of its end.

The same for all protocols and for HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from twisted.protocols.policies import ProtocolWrapper

from pubsub.broker.connection_marks import Marked
from pubsub.broker.handshakes import Shaking
from pubsub.interfaces import ConnectedClient
from pubsub.wire.connection_log import log_closed, log_opened
from pubsub.wire.peer_address import host_of

if TYPE_CHECKING:
    from pubsub.broker.events import ConnectionEvents
    from pubsub.broker.listener import Listener
    from pubsub.wire.direct_transport import StreamTransport


class Admissible(ConnectedClient, Shaking, Marked, Protocol):
    """A new connection on a stream."""

    has_handshake: ClassVar[bool]
    """True if the protocol begins with a handshake."""

    @property
    def stream(self) -> StreamTransport:
        """The transport."""


def admit(listener: Listener, client: Admissible) -> str:
    """Admit ``client``, or raise Refused; return the host that it is counted for.

    The address of the peer may change later, when the header of a proxy arrives.
    """
    host = host_of(client.stream.getPeer())
    client.mark = next(listener.marks)
    listener.admit(host)
    if listener.logs_connections:
        log_opened(listener, client)
    listener.clients.add(client)
    if client.has_handshake or isinstance(client.stream, ProtocolWrapper):
        listener.handshakes.begin(client)
    return host


def withdraw(listener: Listener, client: ConnectedClient, host: str | None) -> None:
    """Undo ``admit``, which has returned ``host``, as the transport is gone; None if it raised."""
    if host is not None:
        listener.leave(host)
        listener.clients.discard(client)


class PublishedTotals(Protocol):
    """The figures of a client's messages: those of its ``Publisher``, for example."""

    messages: int
    nbytes: int


def report_end(
    listener: Listener,
    client: Marked,
    label: str,
    reason: str,
    events: ConnectionEvents | None,
    published: PublishedTotals | None,
) -> None:
    """Report that the connection of ``client`` has ended, in the log and in ``events``."""
    if listener.logs_connections:
        log_closed(listener, client, label, reason)
    if events is None:
        return
    if published is None:
        events.end(label, reason, 0, 0)
    else:
        events.end(label, reason, published.messages, published.nbytes)
