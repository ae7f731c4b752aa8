"""Both ends of a direct transport."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure


class Reactor:
    """Records the registered readers and writers."""

    def __init__(self) -> None:
        self.readers: list[Any] = []
        self.writers: set[object] = set()
        self.later: list[Any] = []

    def addReader(self, reader: object) -> None:
        if reader not in self.readers:
            self.readers.append(reader)

    def removeReader(self, reader: object) -> None:
        if reader in self.readers:
            self.readers.remove(reader)

    def addWriter(self, writer: object) -> None:
        self.writers.add(writer)

    def removeWriter(self, writer: object) -> None:
        self.writers.discard(writer)

    def callLater(self, delay: float, call: Any, *args: Any) -> None:
        self.later.append((call, args))


class Producer:
    """Records pauses and resumptions."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")

    def stopProducing(self) -> None:
        self.calls.append("stop")


class Port:
    """The attributes of a port that a transport uses."""

    _realPortNumber = 1883

    def __init__(self, reactor: Reactor) -> None:
        self.reactor = reactor


class Peer(Protocol):
    """Records received data and the end of the connection."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.calls.append("lost")


class Link:
    """A transport and the socket at the other end."""

    def __init__(self, make: Callable[..., Any], protocol: Peer | None = None) -> None:
        self.ours, self.theirs = socket.socketpair()
        for end in (self.ours, self.theirs):
            end.setblocking(False)
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.reactor = Reactor()
        self.protocol = Peer() if protocol is None else protocol
        first = make(
            self.ours, self.protocol, ("192.0.2.1", 4711), Port(self.reactor), 0, self.reactor
        )
        self.protocol.makeConnection(first)  # type: ignore[no-untyped-call]
        self.got = bytearray()

    @property
    def transport(self) -> Any:
        """Return the present transport of the protocol. (Twisted's methods have no types.)"""
        return self.protocol.transport

    def close(self) -> None:
        self.transport.connectionLost(Failure(ConnectionDone()))
        self.theirs.close()

    @property
    def waits(self) -> bool:
        """Return whether the transport waits until it can write."""
        return self.transport in self.reactor.writers

    def read(self) -> None:
        """Read everything that has arrived."""
        while True:
            try:
                data = self.theirs.recv(1 << 20)
            except BlockingIOError:
                return
            if not data:
                return
            self.got += data

    def finish(self) -> bytes:
        """Read and let the transport write until its buffer is empty; return everything read."""
        for _ in range(10_000):
            self.read()
            if not self.waits:
                break
            result = self.transport.doWrite()
            if result is not None:
                break
        self.read()
        return bytes(self.got)
