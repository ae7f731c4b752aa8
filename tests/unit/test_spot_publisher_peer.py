"""spot's peers that are PUB or XPUB sockets: their messages are published here (§7.6)."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from pubsub.protocols.spot.cluster import Cluster
from pubsub.protocols.spot.outgoing_connection import OutgoingConnection
from pubsub.protocols.spot.zmtp import GREETING
from tests.unit.brokers import LinkStream, message, publish, ready, subscribe
from tests.unit.spot_house import house, join
from tests.unit.streams import House, logged

PEER = "tcp://peer:7073"
SUBSCRIBE_ALL = b"\x04\x0a\x09SUBSCRIBE"


@implementer(IStreamClientEndpoint)
class Peer:
    """A program that accepts connections; ``link`` is the last one, ``kinds`` are those of all."""

    def __init__(self, home: House) -> None:
        self._home = home
        self.link: OutgoingConnection
        self.stream: LinkStream
        self.kinds: list[bytes] = []
        self.cluster = Cluster(home.listeners["spot"], lambda: 0.0, lambda host, port: self)
        self.cluster.join(PEER)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        """See IStreamClientEndpoint."""
        address = IPv4Address("TCP", "192.0.2.9", 7073)
        link = protocolFactory.buildProtocol(address)
        assert isinstance(link, OutgoingConnection)
        self.link, self.stream = link, LinkStream(self._home.clock, address)
        self.stream.protocol = link
        self.kinds.append(link.socket_type)
        link.makeConnection(self.stream)
        done: Deferred[Any] = Deferred()
        done.callback(link)
        return done

    def send(self, data: bytes) -> bytes:
        """Send ``data``; return the bytes that the broker has sent since the last time."""
        self.stream.feed(data)
        return self.take()

    def take(self) -> bytes:
        self._home.turn()
        data = bytes(self.stream.received)
        self.stream.received.clear()
        return data


class PublisherTests(SynchronousTestCase):
    """A peer that is a PUB or XPUB socket"""

    def setUp(self) -> None:
        self.lines = logged(self)
        self.house = house()
        self.peer = Peer(self.house)
        self.house.start()

    def become(self, kind: bytes) -> bytes:
        """The peer turns out to be of this kind; return the second connection's output."""
        self.peer.send(ready(kind))
        self.peer.stream.lose()
        self.house.advance(0.5)
        return self.peer.send(ready(kind))

    def test_it_is_connected_to_as_sub_and_its_messages_are_published(self) -> None:
        for kind in (b"PUB", b"XPUB"):
            self.setUp()
            assert self.become(kind).endswith(SUBSCRIBE_ALL)
            assert self.peer.kinds == [b"DEALER", b"SUB"]
            assert self.house.broker.counters.refusals == {}
            reader = join(self.house, b"DEALER", subscribe(b"t"))
            self.peer.send(message(b"t", b"1") + message(b"u", b"2"))
            assert reader.take() == publish(b"t", b"1")
            assert self.house.broker.topics.named("u").hosted
            page = self.successResultOf(self.house.store.read(0, None, 1000))
            assert {batch.sender for batch in page.batches} == {PEER.encode()}

    def test_zmtp_3_0(self) -> None:
        self.peer.send(ready(b"PUB"))
        self.peer.stream.lose()
        self.house.advance(0.5)
        old = ready(b"PUB").replace(GREETING[:12], GREETING[:11] + b"\0", 1)
        assert self.peer.send(old).endswith(message(b"\x01"))

    def test_the_rules_of_the_listener_apply(self) -> None:
        listener = self.house.listeners["spot"]
        listener.reconfigure({**listener.settings, "allow-publish": ("a",)})
        self.become(b"PUB")
        self.peer.send(message(b"t", b"1") + message(b"$SYS/x", b"2"))
        assert self.house.broker.counters.refusals == {("spot", "not-authorized"): 2}
        assert self.house.broker.counters.published == 0

    def test_it_is_a_publisher_if_it_closes_instead_of_its_ready(self) -> None:
        self.peer.send(GREETING)
        self.peer.stream.lose()
        self.house.advance(0.5)
        assert self.peer.send(ready(b"PUB")).endswith(SUBSCRIBE_ALL)

    def test_a_broker_that_closes_in_its_handshake_is_found_again(self) -> None:
        self.peer.send(GREETING)
        self.peer.stream.lose()
        self.house.advance(0.5)
        self.peer.send(ready(b"XPUB")[:64] + _ready_of_a_broker(b"XPUB"))
        assert self.peer.stream.closed
        self.peer.stream.lose()
        self.house.advance(0.5)
        self.peer.send(ready(b"ROUTER"))
        assert self.peer.kinds == [b"DEALER", b"SUB", b"DEALER"]
        assert self.lines.count(f"{PEER} is connected") == 1

    def test_topics_can_be_created_once_it_is_connected(self) -> None:
        client = join(self.house, b"DEALER", publish(b"t", b"1"))
        assert "t" not in self.house.broker.topics
        self.become(b"PUB")
        client.send(publish(b"t", b"1"))
        assert self.house.broker.topics.named("t").hosted

    def test_it_is_connected_to_again(self) -> None:
        self.become(b"PUB")
        self.peer.stream.lose()
        self.house.advance(0.5)
        self.peer.send(ready(b"PUB"))
        assert self.peer.kinds == [b"DEALER", b"SUB", b"SUB"]
        assert f"{PEER} is disconnected" in self.lines

    def test_a_silent_one_is_gone(self) -> None:
        self.become(b"PUB")
        self.house.advance(3)
        assert b"\x04PING" in self.peer.take()
        self.house.advance(5)
        assert self.peer.link is not None
        assert self.house.broker.counters.refusals == {("spot", "heartbeat"): 1}


def _ready_of_a_broker(kind: bytes) -> bytes:
    body = ready(kind)[66:] + b"\x06X-Node\0\0\0\x0f" + b"7" * 15
    return bytes([4, len(body)]) + body
