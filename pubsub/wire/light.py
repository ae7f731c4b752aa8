"""The transport of a connection that has given no trouble yet, small enough for very many of them.

Twisted's has a buffer, a socket object and texts for its log before the first byte has come: most
of what an idle connection costs.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from twisted.internet import tcp
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IHalfCloseableDescriptor,
    IReadDescriptor,
    ISystemHandle,
    ITCPTransport,
)
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.wire.transport import READ_BYTES, DirectServer


@implementer(ITCPTransport, ISystemHandle, IReadDescriptor, IHalfCloseableDescriptor)
class LightServer:
    """Serves one accepted connection while all there is to do is to receive and to send at once.

    Whatever else is asked of it, a rest that has to be sent later or the end, is done by a
    ``DirectServer``, which takes its place at the reactor and the protocol for good; what is
    still asked of this one is passed on to that.
    """

    __slots__ = ("_fd", "_full", "_host", "_number", "_port", "_producer", "bufferSize", "protocol")

    def __init__(
        self, sock: socket.socket, protocol: Any, client: tuple[Any, ...], port: tcp.Port
    ) -> None:
        sock.setblocking(False)
        # As a number, and not its socket object.
        self._fd = sock.detach()
        self._full: DirectServer | None = None
        # One text for all of a host's connections.
        self._host = sys.intern(client[0])
        self._number: int = client[1]
        self._port: Any = port
        self._producer: object = None
        self.protocol = protocol
        self.bufferSize = READ_BYTES
        self._port.reactor.addReader(self)

    def getPeer(self) -> IPv4Address | IPv6Address:
        """See ITransport."""
        kind = IPv6Address if ":" in self._host else IPv4Address
        return kind("TCP", self._host, self._number)

    def write(self, data: bytes) -> None:
        """See ``DirectServer.write``."""
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
        """See IConsumer."""
        if self._full is None and streaming and self._producer is None:
            self._producer = producer
        else:
            self.full().registerProducer(producer, streaming)  # type: ignore[no-untyped-call]

    def unregisterProducer(self) -> None:
        """See IConsumer."""
        self._producer = None
        if self._full is not None:
            self._full.unregisterProducer()  # type: ignore[no-untyped-call]

    def full(self) -> DirectServer:
        """The transport of Twisted's that does everything, from now on."""
        if self._full is None:
            reactor = self._port.reactor
            # Before the other is added, as it has the same number there.
            reactor.removeReader(self)
            # What IPv6 has besides is zero (see `serve`).
            client = (self._host, self._number, 0, 0)[: 4 if ":" in self._host else 2]
            full = self._full = DirectServer(
                socket.socket(fileno=self._fd), self.protocol, client, self._port, self._fd, reactor
            )
            full.bufferSize = self.bufferSize
            if self._producer is not None:
                full.registerProducer(self._producer, True)  # type: ignore[no-untyped-call]
            self.protocol.transport = full
        return self._full

    def __getattr__(self, name: str) -> Any:
        # What transports can do besides. (zope.interface asks any object for its own names.)
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.full(), name)

    # What the reactor asks of a descriptor

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
        # The reactor has taken this one off its list, and the other is just on it.
        full.stopReading()  # type: ignore[no-untyped-call]
        full.readConnectionLost(reason)

    def connectionLost(self, reason: Failure) -> None:
        """See IFileDescriptor."""
        self.full().connectionLost(reason)


def serve(
    sock: socket.socket,
    protocol: object,
    client: tuple[Any, ...],
    port: tcp.Port,
    number: int,
    reactor: Any,
) -> LightServer | DirectServer:
    """The transport of a connection just accepted; set as ``Port.transport``.

    Addresses with a flow or a scope, which IPv6 has beyond a link, take one that has room for them.
    """
    if any(client[2:]):
        return DirectServer(sock, protocol, client, port, number, reactor)
    return LightServer(sock, protocol, client, port)
