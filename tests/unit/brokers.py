"""Several brokers in memory, and the cables between them, for the clusters of spot (§7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError as Refusal
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from zope.interface import implementer

from pubsub.protocols.spot.cluster import Cluster
from pubsub.protocols.spot.peer_connection import PeerConnection
from tests.unit.fakes import clock_at, drawing
from tests.unit.streams import Client, House, Stream

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def ready(socket_type: bytes, identity: bytes = b"") -> bytes:
    """What a socket of this type sends first: its greeting and READY."""
    body = b"\x05READY\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
    if identity:
        body += b"\x08Identity" + len(identity).to_bytes(4, "big") + identity
    return GREETING + bytes([4, len(body)]) + body


def message(*frames: bytes) -> bytes:
    """A message of short frames."""
    heads = [bytes([1, len(frame)]) + frame for frame in frames[:-1]]
    return b"".join(heads) + bytes([0, len(frames[-1])]) + frames[-1]


def publish(topic: bytes, data: bytes) -> bytes:
    """PUBLISH."""
    return message(b"", b"\x01", topic, data)


def subscribe(topic: bytes) -> bytes:
    """SUBSCRIBE."""
    return message(b"", b"\x02", topic)


def unsubscribe(topic: bytes) -> bytes:
    """UNSUBSCRIBE."""
    return message(b"", b"\x03", topic)


QUERY = message(b"", b"\x04")


class LinkStream(Stream):
    """The transport of a connection that was made rather than accepted."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """See ITCPTransport."""


class Cable:
    """A connection from a broker's link to another broker's listener.

    ``carry`` moves what was written, unless it is cut. ``sent`` is all that the link wrote.
    """

    def __init__(self, clock: Clock, link: PeerConnection, far: House) -> None:
        self._clock = clock
        self.link = link
        self.near = LinkStream(clock, IPv4Address("TCP", "192.0.2.9", 7073))
        self.near.protocol = link
        self.sent = bytearray()
        self.is_cut = False
        self.far = far.connect("spot")
        link.makeConnection(self.near)  # type: ignore[arg-type]

    def carry(self) -> bool:
        """Move what was written on either side; False if there was nothing."""
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
        """The connection breaks."""
        self.near.lose()
        self.far.stream.lose()

    def take(self) -> bytes:
        """What the link has sent since the last time."""
        data = bytes(self.sent)
        self.sent.clear()
        return data


class World:
    """Brokers that share a clock; each is started, and its links are ``cables``."""

    def __init__(self) -> None:
        self.clock = clock_at()
        self.houses: dict[str, House] = {}
        self.cables: list[Cable] = []
        self.down: set[str] = set()
        self.attempts: list[float] = []

    def house(self, name: str, *peers: str, **listen: Mapping[str, object]) -> House:
        """A broker at ``tcp://name:7073`` with spot, and what else it should listen to."""
        number = len(self.houses) + 1
        house = House({"spot": {}, **listen}, draw=drawing(number), clock=self.clock)
        self.houses[name] = house
        if peers:
            cluster = Cluster(house.listeners["spot"], lambda: 0.0, self.reach)
            for peer in peers:
                cluster.join(f"tcp://{peer}:7073")
        house.start()
        self.settle()
        return house

    def client(self, house: House, kind: bytes = b"DEALER", *requests: bytes) -> Client:
        """A client of spot that has shaken hands and sent ``requests``."""
        client = house.connect("spot")
        client.send(ready(kind) + b"".join(requests))
        self.settle()
        client.take()
        return client

    def settle(self) -> None:
        """Let turns end and carry what was written until nothing moves."""
        moved = True
        while moved:
            self.clock.advance(0)
            moved = any(cable.carry() for cable in self.cables)
        self.clock.advance(0)

    def advance(self, seconds: float) -> None:
        """Time passes, half a second at a time, and everything is carried."""
        while seconds > 0:
            self.clock.advance(min(seconds, 0.5))
            self.settle()
            seconds -= 0.5

    def crash(self, name: str) -> None:
        """The broker ``name`` ends; nothing can connect to it until it is made again."""
        self.down.add(name)
        gone = self.houses[name]
        for cable in self.cables:
            if cable.far.protocol.listener.topics is gone.broker.topics and not cable.near.lost:
                cable.snap()
        self.settle()

    def restart(self, name: str, *peers: str) -> House:
        """It is there again, and has forgotten everything."""
        self.down.discard(name)
        return self.house(name, *peers)

    def reach(self, host: str, port: int) -> IStreamClientEndpoint:
        """How a cluster finds another broker."""
        return Road(self, host)


@implementer(IStreamClientEndpoint)
class Road:
    """The way to a broker by its name."""

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
            assert isinstance(link, PeerConnection)
            world.cables.append(Cable(world.clock, link, world.houses[self._name]))
            done.callback(link)

        world.clock.callLater(0, arrive)
        return done
