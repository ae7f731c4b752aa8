"""A connection to another program: no client of the listener, and kept alive (spot §2.5, §7.1)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from twisted.internet.interfaces import ITCPTransport

from pubsub.broker.credentials.identity import ADDRESS, Identity
from pubsub.protocols.spot.broker_commands import NODE
from pubsub.protocols.spot.connection import ZmtpConnection
from pubsub.protocols.spot.message_heads import KnownPublications
from pubsub.protocols.spot.security import client_mechanisms
from pubsub.protocols.spot.zmtp import FrameLimits, encode_metadata
from pubsub.wire.outgoing_tls import tls_trouble
from pubsub.wire.peer_address import host_of

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.kernel import Columns
    from pubsub.protocols.spot.topic_copies import PageReader

# Another broker is trusted more than a client: it may have larger limits and many topics.
FRAME_LIMITS = FrameLimits(frame=64 * 1024 * 1024, frames=1_000_000)
PUBLISHERS = (b"PUB", b"XPUB")
"""The socket types to which one connects as SUB, and not as DEALER."""
# Heartbeats without any input after which the other program is considered gone.
_MISSED_HEARTBEATS = 3


class PeerEvents(Protocol):
    """The program at the other end, which is notified of the connection's events."""

    endpoint: str

    def opened(self, connection: OutgoingConnection) -> None:
        """The handshake is done."""

    def lost(self, connection: OutgoingConnection) -> None:
        """The connection has ended."""

    def listed(self, names: list[bytes]) -> Work:
        """The other broker hosts the topics of these names, which may be many."""

    def query_timed_out(self) -> None:
        """The other broker has not done its handshake, or not answered a query, in time."""

    def connected_to_itself(self) -> None:
        """The other end turned out to be this very broker."""

    def received(self, topic: Topic, columns: Columns, reader: PageReader) -> None:
        """The other broker has delivered messages of a topic; ``reader`` can read its history."""

    def set_publisher(self, publisher: bool) -> None:
        """The other end is a PUB or XPUB socket, or is not: the next connection is for that."""


class OutgoingConnection(ZmtpConnection):
    """The base of the connections to peers; ``socket_type`` is this side's."""

    is_listed = False
    socket_type: bytes
    is_open = False
    handshake_refused = False
    """True if the other end closed the connection in the handshake; perhaps for the socket type."""
    trouble = ""
    """The reason for which TLS ended the connection, if it did."""
    _ticks_since_ping = 0
    _began = 0.0

    def __init__(self, listener: Listener, node: PeerEvents) -> None:
        run = b"%015x" % listener.dispatcher.run_id
        metadata = encode_metadata(self.socket_type, {b"Identity": b"", NODE: run})
        mechanisms = client_mechanisms(listener.settings, node.endpoint, metadata)
        super().__init__(listener, FRAME_LIMITS, mechanisms)
        # Shared by the connections that read the same bytes alike.
        key = ("spot-peer-publications", self.socket_type)
        self.known = listener.shared(key, partial(_make_known, listener))
        self._node = node

    @property
    def peer(self) -> str:
        """See ``Connection``."""
        return self._node.endpoint

    def transport_identity(self) -> Identity:
        """See ``Identified``: the address that was connected to."""
        return Identity(self.peer, ADDRESS, host=host_of(self.stream.getPeer()))

    @property
    def accepted_by(self) -> object:
        """See ``ConnectedClient``."""
        return None

    def connectionMade(self) -> None:
        """Not counted among the listener's clients, as it is an outgoing connection."""
        self.mark = next(self.listener.marks)
        self.listener.clients.add(self)
        self._began = self.listener.clock.seconds()
        transport = self.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)
        self.stream.registerProducer(self, True)
        self.start()

    @property
    def _node_id(self) -> bytes:
        return b"%015x" % self.listener.dispatcher.run_id

    @property
    def _is_publisher(self) -> bool:
        """True if the other end is a socket that only publishes. Brokers are none, in any role."""
        return self.handshake.socket_type in PUBLISHERS and not self.is_node

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``: heartbeats that are due."""
        super().sweep(now)
        if not self.is_open and now - self._began > self.listener.settings["query-timeout"]:
            # The handshake may take longer, but clients do not wait for it to create a topic.
            self._node.query_timed_out()
        if self.closing or not self.is_open:
            return
        heartbeat = self.listener.settings["heartbeat"]
        if self._silent_ticks > _MISSED_HEARTBEATS * heartbeat and self._expects_pongs:
            self.listener.refuse("heartbeat", self.label, connection=self)
            self.abort(f"silent for {_MISSED_HEARTBEATS} heartbeats")
            return
        self._ticks_since_ping += 1
        if self._ticks_since_ping >= heartbeat:
            self._ticks_since_ping = 0
            if self.handshake.has_commands and not self.output_full:
                self.send_ping()

    def send_ping(self) -> None:
        """Send a PING."""
        raise NotImplementedError

    @property
    def _expects_pongs(self) -> bool:
        """False if the other end knows no PING, or a slow subscriber keeps us from reading."""
        return self.handshake.has_commands and not self._hold_reasons

    def connectionLost(self, reason: Failure | None = None) -> None:
        """See ``Connection``."""
        handshake = self.handshake
        greeted = handshake.minor is not None and not handshake.done
        self.handshake_refused = greeted and not self.closing
        self.trouble = tls_trouble(reason, self.transport)
        super().connectionLost()
        self.listener.clients.discard(self)
        self._node.lost(self)


def _make_known(listener: Listener) -> KnownPublications:
    return KnownPublications(
        FRAME_LIMITS.frame, listener.memory, listener.frame_turns, listener.at_tick_end
    )
