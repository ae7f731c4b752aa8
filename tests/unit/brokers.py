"""Several brokers in memory, and the connections between them, for clusters of spot (§7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError as Refusal
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from zope.interface import implementer

from pubsub.interfaces import IStore
from pubsub.protocols.spot.cluster import Cluster
from pubsub.protocols.spot.outgoing_connection import OutgoingConnection
from tests.unit.fakes import clock_at, drawing
from tests.unit.streams import Client, House, Stream

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def ready(socket_type: bytes, identity: bytes = b"", refusals: bool = False) -> bytes:
    """Return the greeting and READY of a socket of this type, perhaps with X-Refusals."""
    body = b"\x05READY\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
    if refusals:
        body += b"\x0aX-Refusals\0\0\0\x011"
    if identity:
        body += b"\x08Identity" + len(identity).to_bytes(4, "big") + identity
    return GREETING + bytes([4, len(body)]) + body


def message(*frames: bytes) -> bytes:
    """Return a message of short frames."""
    heads = [bytes([1, len(frame)]) + frame for frame in frames[:-1]]
    return b"".join(heads) + bytes([0, len(frames[-1])]) + frames[-1]


def publish(topic: bytes, data: bytes) -> bytes:
    """Return PUBLISH."""
    return message(b"", b"\x01", topic, data)


def subscribe(topic: bytes) -> bytes:
    """Return SUBSCRIBE."""
    return message(b"", b"\x02", topic)


def unsubscribe(topic: bytes) -> bytes:
    """Return UNSUBSCRIBE."""
    return message(b"", b"\x03", topic)


QUERY = message(b"", b"\x04")


class LinkStream(Stream):
    """The transport of an outgoing connection."""

    def setTcpKeepAlive(self, enabled: bool) -> None: ...

    def setTcpNoDelay(self, enabled: bool) -> None:
        """See ITCPTransport."""


class Cable:
    """A connection from a broker's link to another broker's listener.

    ``carry`` moves the output, unless the cable is cut. ``sent`` is all that the link wrote.
    """

    def __init__(self, clock: Clock, link: OutgoingConnection, far: House) -> None:
        self._clock = clock
        self.link = link
        self.near = LinkStream(clock, IPv4Address("TCP", "192.0.2.9", 7073))
        self.near.protocol = link
        self.sent = bytearray()
        self.is_cut = False
        self.far = far.connect("spot")
        link.makeConnection(self.near)  # type: ignore[arg-type]

    def carry(self) -> bool:
        """Transfer the output of both sides; return False if there was none."""
        if self.is_cut or self.near.lost:
            return False
        out, back = bytes(self.near.received), self.far.take()
        self.near.received.clear()
        self.sent += out
        if out:
            self.far.stream.feed(out)
        if back:
            self.near.feed(back)
        if self.near.aborted or self.far.stream.aborted:
            self.snap()
        return bool(out or back)

    def snap(self) -> None:
        """Break the connection."""
        self.near.lose()
        self.far.stream.lose()

    def take(self) -> bytes:
        """Return the bytes that the link has sent since the last call."""
        data = bytes(self.sent)
        self.sent.clear()
        return data


class World:
    """Started brokers that share a clock; ``cables`` are the connections of their links."""

    def __init__(self) -> None:
        self.clock = clock_at()
        self.houses: dict[str, House] = {}
        self.cables: list[Cable] = []
        self.down: set[str] = set()
        self.attempts: list[float] = []
        self._started = 0

    def house(
        self,
        name: str,
        *peers: str,
        store: IStore | None = None,
        **listen: Mapping[str, object],
    ) -> House:
        """Return a broker with spot at ``tcp://name:7073`` and the listeners in ``listen``."""
        self._started += 1
        listeners = {"spot": {}, **listen}
        house = House(listeners, draw=drawing(self._started), clock=self.clock, store=store)
        self.houses[name] = house
        if peers:
            cluster = Cluster(house.listeners["spot"], lambda: 0.0, self.reach)
            for peer in peers:
                cluster.join(f"tcp://{peer}:7073")
        house.start()
        self.settle()
        return house

    def client(self, house: House, kind: bytes = b"DEALER", *requests: bytes) -> Client:
        """Return a client of spot that has sent a handshake and ``requests``."""
        client = house.connect("spot")
        client.send(ready(kind) + b"".join(requests))
        self.settle()
        client.take()
        return client

    def settle(self) -> None:
        """End ticks and transfer output until nothing changes."""
        moved = True
        while moved:
            self.clock.advance(0)
            moved = any(cable.carry() for cable in self.cables)
        self.clock.advance(0)

    def advance(self, seconds: float) -> None:
        """Advance the clock in steps of half a second and transfer everything."""
        while seconds > 0:
            self.clock.advance(min(seconds, 0.5))
            self.settle()
            seconds -= 0.5

    def crash(self, name: str) -> None:
        """End the broker ``name``; connections to it fail until it is restarted."""
        self.down.add(name)
        gone = self.houses[name]
        for cable in self.cables:
            if cable.far.protocol.listener.topics is gone.broker.topics and not cable.near.lost:
                cable.snap()
        self.settle()

    def restart(self, name: str, *peers: str) -> House:
        """Start it again with an empty history."""
        self.down.discard(name)
        return self.house(name, *peers)

    def reach(self, host: str, port: int) -> IStreamClientEndpoint:
        """Return the endpoint of another broker."""
        return Road(self, host)


@implementer(IStreamClientEndpoint)
class Road:
    """An endpoint of a broker, by its name."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        """See IStreamClientEndpoint."""
        world, done = self._world, Deferred[Any]()
        world.attempts.append(world.clock.seconds())

        def arrive() -> None:
            if self._name in world.down or self._name not in world.houses:
                done.errback(Refusal())
                return
            link = protocolFactory.buildProtocol(IPv4Address("TCP", "192.0.2.9", 7073))
            assert isinstance(link, OutgoingConnection)
            world.cables.append(Cable(world.clock, link, world.houses[self._name]))
            done.callback(link)

        world.clock.callLater(0, arrive)
        return done
