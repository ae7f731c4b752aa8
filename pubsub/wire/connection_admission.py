"""The admission of a connection by its listener, and the report of its end.

The same for all protocols and for HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from twisted.protocols.policies import ProtocolWrapper

from pubsub.broker.clients.connection_marks import Marked
from pubsub.broker.clients.handshakes import Shaking
from pubsub.broker.listeners.limits import UNKNOWN
from pubsub.errors import Refused
from pubsub.interfaces import ConnectedClient
from pubsub.wire.connection_log import log_closed, log_opened
from pubsub.wire.peer_address import host_of, network_of
from pubsub.wire.proxy_protocol import awaits_header

if TYPE_CHECKING:
    from pubsub.broker.figures.events import ConnectionEvents
    from pubsub.broker.listeners.listener import Listener
    from pubsub.wire.direct_transport import StreamTransport


class Admissible(ConnectedClient, Shaking, Marked, Protocol):
    """A new connection on a stream."""

    has_handshake: ClassVar[bool]
    """True if the protocol begins with a handshake."""

    @property
    def stream(self) -> StreamTransport:
        """The transport."""

    def not_admitted(self, refused: Refused) -> None:
        """Count and answer the refusal, and close."""


def admit(listener: Listener, client: Admissible, spared: bool = False) -> str | None:
    """Admit ``client``; return the host that it is counted for, or None if it is not admitted.

    ``spared`` admits it at the bounds of memory and of connections too. The host is UNKNOWN if the
    header of a proxy has still to name it (see ``locate``). Of IPv6 it is a network of 64 bits.
    """
    host = UNKNOWN if awaits_header(client.stream) else _counted_for(client)
    client.mark = next(listener.marks)
    try:
        listener.admit(host, spared)
    except Refused as refused:
        client.not_admitted(refused)
        return None
    if listener.logs_connections:
        log_opened(listener, client)
    listener.clients.add(client)
    if client.has_handshake or isinstance(client.stream, ProtocolWrapper):
        listener.handshakes.begin(client)
    return host


def _counted_for(client: Admissible) -> str:
    return network_of(host_of(client.stream.getPeer()))


def locate(listener: Listener, client: Admissible, host: str | None) -> str | None:
    """Return the host that ``client`` is counted for, now that its address is known.

    ``host`` is that of ``admit``. If it is UNKNOWN, the client may be one too many of its address.
    """
    if host != UNKNOWN:
        return host
    found = _counted_for(client)
    try:
        listener.quota.locate(found)
    except Refused as refused:
        client.not_admitted(refused)
        return host
    return found


def withdraw(listener: Listener, client: ConnectedClient, host: str | None) -> None:
    """Undo ``admit``, as the transport is gone; ``host`` is from ``admit`` or ``locate``."""
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
    messages, nbytes = (0, 0) if published is None else (published.messages, published.nbytes)
    events.end(label, reason, messages, nbytes, client.log_fields().get("identity"))
