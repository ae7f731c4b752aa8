"""Clients in memory, connected to a broker through a simulated TCP transport.

``Stream`` is the broker's end of a connection. Written data arrives at once while the client reads.
While it does not, 64 KiB pause the producer, as in Twisted, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import Interface, directlyProvides, provider

from pubsub.broker.audit_log.audit import AuditLog
from pubsub.broker.credentials.issuer_key_refresh import Fetch
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.listeners.listener import Listener
from pubsub.interfaces import IStore
from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, Config, merge
from pubsub.server.reload import LiveConfiguration, Reloader
from pubsub.store.memory_store import MemoryStore
from pubsub.tuning import TUNED
from pubsub.wire.connection import Connection
from pubsub.wire.direct_transport import READ_BYTES
from tests.unit.fakes import clock_at, drawing, make_broker

ROOM = 65_536
"""Bytes a transport buffers before it pauses its producer."""


def logged(case: SynchronousTestCase) -> list[str]:
    """Return the list of lines that are logged from now on, until ``case`` ends."""
    lines: list[str] = []

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        lines.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    case.addCleanup(globalLogPublisher.removeObserver, observe)
    return lines


class Stream:
    """The transport of one connection; ``provides`` has its interface, TCP by default."""

    bufferSize = READ_BYTES
    _write_lost = False

    def __init__(
        self, clock: Clock, peer: object, provides: tuple[type[Interface], ...] = (ITCPTransport,)
    ) -> None:
        directlyProvides(self, *provides)
        self.protocol: Connection
        self.producer: Any = None
        self.received = bytearray()
        self.writes: list[bytes] = []
        self.buffered = bytearray()
        self.reading = True
        self.paused = False
        self.half_closed = self.aborted = self.losing = self.lost = False
        self._clock = clock
        self._peer = peer
        self._producer_paused = False
        self._unread: list[bytes] = []

    # Used by the broker

    def getPeer(self) -> object:
        return self._peer

    def registerProducer(self, producer: object, streaming: bool) -> None:
        assert self.producer is None
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        if self.lost or self.half_closed or self.aborted:
            return
        self.writes.append(data)
        if self.reading:
            self.received += data
            return
        self.buffered += data
        if self.producer is not None and len(self.buffered) > ROOM:
            self._producer_paused = True
            self.producer.pauseProducing()

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        if self._unread:
            self._clock.callLater(0, self._read)

    def loseWriteConnection(self) -> None:
        self.half_closed = True
        self._clock.callLater(0, self._sent)

    def loseConnection(self) -> None:
        self.losing = True
        self._clock.callLater(0, self._sent)

    def abortConnection(self) -> None:
        if not self.lost and not self.aborted:
            self.aborted = True
            self.buffered.clear()
            self._clock.callLater(0, self._lose, ConnectionAborted())

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the client has not read."""
        return len(self.buffered)

    # Used by the client

    @property
    def closed(self) -> bool:
        """True if the client sees the end of the stream."""
        ending = self.half_closed or self.losing
        return self.aborted or self.lost or (ending and not self.buffered)

    def stop_reading(self) -> None:
        """Stop reading: written data stays in the transport."""
        self.reading = False

    def read(self, on: bool = True) -> None:
        """Receive everything that is buffered, and continue to read if ``on``."""
        self.reading = on
        self.received += self.buffered
        self.buffered.clear()
        self._sent()

    def feed(self, data: bytes) -> None:
        """Send bytes to the broker; they wait while it does not read."""
        if self.paused or self._unread:
            self._unread.append(data)
        elif not self.lost and not self.aborted:
            self.protocol.dataReceived(data)

    def lose(self, clean: bool = False) -> None:
        """Lose the connection."""
        self._lose(ConnectionDone() if clean else ConnectionLost())

    def _lose(self, reason: Exception) -> None:
        if not self.lost:
            self.lost = True
            self.protocol.connectionLost(Failure(reason))

    def _read(self) -> None:
        while self._unread and not self.paused and not self.lost:
            self.protocol.dataReceived(self._unread.pop(0))

    def _sent(self) -> None:
        if self.buffered or self.lost or self.aborted:
            return
        if self.producer is not None and self._producer_paused:
            self._producer_paused = False
            self.producer.resumeProducing()
        elif self.losing:
            self._lose(ConnectionDone())
        elif self.half_closed and not self._write_lost:
            self._write_lost = True
            self.protocol.writeConnectionLost()


class Client:
    """A client connected through a ``Stream``."""

    def __init__(self, protocol: Connection, stream: Stream, clock: Clock) -> None:
        self.protocol = protocol
        self.stream = stream
        self._clock = clock
        stream.protocol = protocol
        protocol.makeConnection(stream)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        """Send ``data`` in one read and end the tick."""
        self.stream.feed(data)
        self._clock.advance(0)

    def take(self) -> bytes:
        """Return the bytes received since the last call."""
        data = bytes(self.stream.received)
        self.stream.received.clear()
        return data

    @property
    def closed(self) -> bool:
        """True if the client can see that the broker has closed the connection."""
        return self.stream.closed


# Each search takes 5 ms, and no protocol is installed while the tests run.
_installed_protocols = cache(installed_protocols)


def over_tcp(factory: Any, stream: Stream, clock: Clock) -> Client:
    """Return a client whose connection is that of ``factory`` over ``stream``."""
    return Client(factory.buildProtocol(stream.getPeer()), stream, clock)


class House:
    """A broker with one listener of each protocol in ``listen``, all in memory.

    ``listen`` maps protocols to their listeners' settings, ``top`` has those of the whole broker;
    both are written as in the configuration file.
    """

    def __init__(
        self,
        listen: Mapping[str, Mapping[str, object]],
        *,
        draw: Callable[[int], int] | None = None,
        store: IStore | None = None,
        clock: Clock | None = None,
        top: Mapping[str, object] | None = None,
        fetch_keys: Fetch | None = None,
    ) -> None:
        self.document = {
            **(top or {}),
            "listen": [{"protocol": name, **settings} for name, settings in listen.items()],
        }
        self._protocols = {n: p for n, p in _installed_protocols().items() if n in listen}
        self.config = self.read()
        whole = self.config.broker
        self.clock = clock_at() if clock is None else clock
        self.store = MemoryStore(*whole["history"]) if store is None else store
        self.audit = AuditLog(self.clock.seconds, whole["audit-log"], whole["audit-size"])
        self.broker = make_broker(
            self.clock,
            BrokerLimits.of(whole),
            self.store,
            draw or drawing(),
            self.config.ring,
            self.audit,
            whole["events"],
            self.config.redacted,
            fetch_keys=fetch_keys,
        )
        self.broker.passwords.replace(self.config.passwords)
        self.listeners: dict[str, Listener] = {}
        self.factories: dict[str, Any] = {}
        for config in self.config.listeners:
            name = config.protocol.name
            listener = self.broker.make_listener(name, config.settings, config.endpoint)
            self.listeners[name] = listener
            self.broker.add_listener(listener)
            self.factories[name] = config.protocol.make_factory(listener)
        self._ports = iter(range(40_000, 60_000))
        self.attach: Callable[[Any, Stream, Clock], Client] = over_tcp
        """Connects a client: its factory, the transport, the clock."""

    def reloader(self, reactor: object = None) -> Reloader:
        """Return a ``Reloader``, which reads the ``document`` again and applies it."""
        live = LiveConfiguration(self.broker, self.config, self.clock, TUNED)
        return Reloader(live, self.read, reactor)

    def read(self) -> Config:
        """Return the configuration of the current ``document``."""
        # Clients of tests are at other addresses than loopback.
        document = {"allow-anonymous": True, **self.document}
        return merge(self._protocols, CommandLine(), document)

    def connect(self, protocol: str, host: str = "192.0.2.1") -> Client:
        """Return a new client of ``protocol`` from its own port."""
        address = IPv4Address("TCP", host, next(self._ports))
        return self.attach(self.factories[protocol], Stream(self.clock, address), self.clock)

    def start(self) -> None:
        """Start the housekeeping, once a second."""
        self.broker.startService()

    def advance(self, seconds: float) -> None:
        """Advance the clock in steps of at most half a second."""
        while seconds > 0:
            self.clock.advance(min(seconds, 0.5))
            seconds -= 0.5

    def turn(self) -> None:
        """End the reactor tick."""
        self.clock.advance(0)

    def pump(self, turns: int = 50) -> None:
        """End several ticks."""
        for _ in range(turns):
            self.clock.advance(0)


class ProtocolHouse(House):
    """A broker with a listener of ``served``; its settings by name, with ``_`` for ``-``.

    ``also`` has the settings of listeners of other protocols.
    """

    served: ClassVar[str]

    def __init__(
        self,
        top: Mapping[str, object] | None = None,
        also: Mapping[str, Mapping[str, object]] | None = None,
        store: IStore | None = None,
        draw: Callable[[int], int] | None = None,
        **settings: object,
    ) -> None:
        own = {name.replace("_", "-"): value for name, value in settings.items()}
        super().__init__({self.served: own, **(also or {})}, draw=draw, store=store, top=top)
