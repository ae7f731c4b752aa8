"""The figures of connections that are not one subscriber each: datagrams, HTTP, clients behind one.

Those of the streams of each protocol are in ``tests/contract/test_figures.py``.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.figures.connection_figures import LEAVING, LIVE, ConnectionFigures
from tests.unit import cafe_udp, cafe_wire
from tests.unit.brokers import message, subscribe, unsubscribe
from tests.unit.cafe_udp import ALICE, BOB
from tests.unit.http_follower import Follower
from tests.unit.routed_identities import ANN, BEN
from tests.unit.spot_house import house, join
from tests.unit.streams import Client
from tests.unit.web import WebHouse
from tests.unit.web_sockets import connected


class DatagramTests(SynchronousTestCase):
    """cafe over UDP"""

    def test_of_peers(self) -> None:
        udp = cafe_udp.joined()
        sent = udp.send(ALICE, cafe_wire.publish(1, b"12345", b"678"))
        assert sent == []
        udp.pump()
        received = b"".join(udp.take(BOB))
        alice, bob = udp.protocol._clients[ALICE], udp.protocol._clients[BOB]
        assert alice.figures() == ConnectionFigures(messages_in=2, bytes_in=8)
        assert bob.figures() == ConnectionFigures(
            subscriptions=1, messages_out=2, bytes_out=len(received)
        )
        bob.close()
        assert bob.figures().state == LEAVING


class HttpTests(SynchronousTestCase):
    """The HTTP API"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def test_of_a_publisher(self) -> None:
        client = self.house.connect()
        client.ask("POST", "/v1/topics/a/messages", b"12345")
        assert client.answer().status == 200
        figures = client.channel.figures()
        assert (figures.messages_in, figures.bytes_in, figures.messages_out) == (1, 5, 0)
        protocols = self.house.broker.statistics.snapshot()["protocols"]
        assert protocols["http"]["messages_in"] == 1

    def test_of_a_follower_and_after_it_has_ended(self) -> None:
        follower = Follower(self.house)
        channel = follower.client.channel
        self.house.publish("a", b"1", b"2")
        self.house.clock.advance(0)
        figures = channel.figures()
        assert (figures.subscriptions, figures.messages_out, figures.state) == (1, 2, LIVE)
        assert figures.bytes_out > 0
        follower.stream.lose()
        gone = channel.figures()
        assert (gone.messages_out, gone.bytes_out) == (2, figures.bytes_out)
        assert (gone.subscriptions, gone.state) == (0, LEAVING)

    def test_of_a_websocket(self) -> None:
        client = connected(self.house)
        client.ask("subscribe", topic="a")
        client.send("publish", topic="a", value="12345")
        assert client.values() == ["12345"]
        figures = client.client.channel.figures()
        assert (figures.messages_in, figures.bytes_in) == (1, 5)
        assert (figures.subscriptions, figures.messages_out) == (1, 1)


class RoutedTests(SynchronousTestCase):
    """Clients behind a ROUTER of spot"""

    def test_a_connection_has_the_figures_of_all_its_clients(self) -> None:
        spot = house()
        proxy, writer = join(spot), join(spot, b"PUB")
        for client in (ANN, BEN):
            self.request(proxy, client, subscribe(b"t"))
        writer.send(message(b"t", b"12345"))
        spot.pump(3)
        figures = proxy.protocol.figures()
        assert (figures.subscriptions, figures.messages_out) == (2, 2)
        self.request(proxy, ANN, unsubscribe(b"t"))
        ended = proxy.protocol.figures()
        assert (ended.subscriptions, ended.messages_out) == (1, 2)
        assert ended.bytes_out == figures.bytes_out

    def request(self, proxy: Client, client: bytes, request: bytes) -> None:
        proxy.send(bytes([1, len(client)]) + client + request)
