"""A small transport for connections that only receive and send at once.

Twisted's transport has a buffer, a socket object and texts for its log from the start, which is
most of the memory of an idle connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from twisted.internet import tcp
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IConsumer,
    IHalfCloseableDescriptor,
    IPushProducer,
    IReadDescriptor,
    ISystemHandle,
    ITCPTransport,
)
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.tuning import DIRECT_TRANSPORT, LIGHT_TRANSPORT, Tuning
from pubsub.wire.direct_transport import READ_BYTES, DirectTransport

# Set in the packed address if it is an IPv6 address.
_IPV6 = 1 << 128


def _passed_on(name: str) -> Callable[..., Any]:
    """Return a method that calls that of the full transport."""

    def method(self: LightTransport, *args: Any) -> Any:
        return getattr(self.full(), name)(*args)

    method.__name__ = name
    return method


@implementer(
    ITCPTransport,
    ISystemHandle,
    IConsumer,
    IPushProducer,
    IReadDescriptor,
    IHalfCloseableDescriptor,
)
class LightTransport:
    """Serves one accepted connection as long as it only receives, and sends at once.

    For anything else, such as bytes that cannot be sent yet or the end, a ``DirectTransport``
    permanently takes its place in the reactor and the protocol. Further calls are passed on to
    that.
    """

    __slots__ = ("_fd", "_full", "_peer", "_port", "_producer", "bufferSize", "protocol")

    def __init__(
        self, sock: socket.socket, protocol: Any, client: tuple[Any, ...], port: tcp.Port
    ) -> None:
        sock.setblocking(False)
        # The file descriptor alone takes less memory than the socket object.
        self._fd = sock.detach()
        self._full: DirectTransport | None = None
        self._peer = _packed(*client[:2])
        self._port: Any = port
        self._producer: object = None
        self.protocol = protocol
        self.bufferSize = READ_BYTES
        self._port.reactor.addReader(self)

    def getPeer(self) -> IPv4Address | IPv6Address:
        """See ITransport."""
        host, number = _unpacked(self._peer)
        return (IPv6Address if ":" in host else IPv4Address)("TCP", host, number)

    def write(self, data: bytes) -> None:
        """See ``DirectTransport.write``."""
        if self._full is not None:
            self._full.write(data)
            return
        try:
            sent = os.write(self._fd, data)
        except OSError:
            sent = 0
        if sent < len(data):
            self.full().keep(data, sent)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """See IConsumer. A streaming producer is only kept: it is never paused here."""
        if self._full is None and self._producer is None and streaming:
            self._producer = producer
        else:
            self.full().registerProducer(producer, streaming)  # type: ignore[no-untyped-call]

    def full(self) -> DirectTransport:
        """Replace this transport by a full one, and return that."""
        if self._full is None:
            reactor = self._port.reactor
            # Before the full transport is added, which has the same file descriptor.
            reactor.removeReader(self)
            host, number = _unpacked(self._peer)
            # The flow and the scope of IPv6 are zero (see `serve`).
            client = (host, number, 0, 0) if ":" in host else (host, number)
            full = self._full = DirectTransport(
                socket.socket(fileno=self._fd), self.protocol, client, self._port, self._fd, reactor
            )
            full.bufferSize = self.bufferSize
            if self._producer is not None:
                full.registerProducer(self._producer, True)  # type: ignore[no-untyped-call]
                self._producer = None
            self.protocol.transport = full
        return self._full

    # Listed one by one, as __getattr__ slows down every access to an attribute.
    unregisterProducer = _passed_on("unregisterProducer")
    pauseProducing = _passed_on("pauseProducing")
    resumeProducing = _passed_on("resumeProducing")
    stopProducing = _passed_on("stopProducing")
    writeSequence = _passed_on("writeSequence")
    loseConnection = _passed_on("loseConnection")
    loseWriteConnection = _passed_on("loseWriteConnection")
    abortConnection = _passed_on("abortConnection")
    writeConnectionLost = _passed_on("writeConnectionLost")
    getHost = _passed_on("getHost")
    getHandle = _passed_on("getHandle")
    getTcpNoDelay = _passed_on("getTcpNoDelay")
    setTcpNoDelay = _passed_on("setTcpNoDelay")
    getTcpKeepAlive = _passed_on("getTcpKeepAlive")
    setTcpKeepAlive = _passed_on("setTcpKeepAlive")

    # IReadDescriptor, called by the reactor

    def fileno(self) -> int:
        """See IFileDescriptor."""
        return self._fd if self._full is None else self._full.fileno()

    def logPrefix(self) -> str:
        """See ILoggingContext."""
        return type(self.protocol).__name__

    def doRead(self) -> ConnectionDone | ConnectionLost | None:  # type: ignore[override]
        """See IReadDescriptor."""
        try:
            data = os.read(self._fd, self.bufferSize)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not data:
            return CONNECTION_DONE
        self.protocol.dataReceived(data)
        return None

    def readConnectionLost(self, reason: Failure) -> None:
        """See IHalfCloseableDescriptor."""
        full = self.full()
        # The reactor has removed this transport, and has just added the full one.
        full.stopReading()  # type: ignore[no-untyped-call]
        full.readConnectionLost(reason)

    def connectionLost(self, reason: Failure) -> None:
        """See IFileDescriptor."""
        self.full().connectionLost(reason)


def _packed(host: str, number: int) -> int:
    """Return an address and a port as one number, which takes a third of the memory."""
    if ":" in host:
        address = int.from_bytes(socket.inet_pton(socket.AF_INET6, host), "big") | _IPV6
    else:
        address = int.from_bytes(socket.inet_aton(host), "big")
    return address << 16 | number


def _unpacked(peer: int) -> tuple[str, int]:
    address, number = divmod(peer, 1 << 16)
    if address & _IPV6:
        return socket.inet_ntop(socket.AF_INET6, (address ^ _IPV6).to_bytes(16, "big")), number
    return socket.inet_ntoa(address.to_bytes(4, "big")), number


def serve(
    sock: socket.socket,
    protocol: object,
    client: tuple[Any, ...],
    port: tcp.Port,
    number: int,
    reactor: Any,
) -> LightTransport | DirectTransport:
    """Return the transport of a new connection; set as ``Port.transport``.

    IPv6 addresses with a flow or a scope get a full transport, which can store those.
    """
    if any(client[2:]):
        return DirectTransport(sock, protocol, client, port, number, reactor)
    return LightTransport(sock, protocol, client, port)


def use_transports(port: tcp.Port, tuning: Tuning) -> None:
    """Have ``port`` make the transports of ``tuning`` for its connections."""
    if DIRECT_TRANSPORT in tuning:
        made = serve if LIGHT_TRANSPORT in tuning else DirectTransport
        port.transport = made  # type: ignore[assignment]
