"""Connections over TLS that fail: handshakes, which are counted once, and an abrupt end."""

from __future__ import annotations

import ssl

from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import ITCPTransport
from twisted.trial.unittest import SynchronousTestCase

from tests.unit.cafe_wire import PING, PONG
from tests.unit.streams import Stream
from tests.unit.tls_house import publisher, serve
from tests.unit.tls_streams import V12, V13, TlsClient, client_context, tls_end
from tests.unit.web import Answer, WebHouse, WebStream

CLIENT = IPv4Address("TCP", "192.0.2.1", 9)


def client_hello() -> bytes:
    """Return the first message of a client."""
    outgoing = ssl.MemoryBIO()
    tls = client_context(V13).wrap_bio(ssl.MemoryBIO(), outgoing)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("the handshake is done")


class HandshakeTests(SynchronousTestCase):
    """Handshakes that fail"""

    def setUp(self) -> None:
        self.house = serve()
        self.refused: list[tuple[str, str]] = []

    def connect(self, sent: bytes) -> Stream:
        """Return the transport of a client that sends these bytes."""
        stream = Stream(self.house.clock, CLIENT)
        tls_end(
            self.house.factories["cafe"], stream, self.house.clock,
            lambda reason, client: self.refused.append((reason, client)),
        )  # fmt: skip
        if sent:
            stream.feed(sent)
        return stream

    def test_they_are_counted_once_with_their_reason(self) -> None:
        hello = client_hello()
        for sent, reason in (
            (b"GET / HTTP/1.1\r\n\r\n", "tls-plaintext"),
            (b"\xfe\xca\x01\x07\x00\x00\x00\x07\x05alice", "tls-plaintext"),
            (hello[:9] + bytes(len(hello)), "tls-handshake"),
        ):
            self.refused.clear()
            stream = self.connect(sent)
            assert self.refused == [(reason, "192.0.2.1:9")]
            self.house.turn()
            stream.lose()
            self.house.turn()
            assert len(self.refused) == 1

    def test_a_client_that_leaves_within_one(self) -> None:
        hello = client_hello()
        for sent in (hello[:20], hello):
            self.refused.clear()
            self.connect(sent).lose()
            assert self.refused == [("tls-handshake", "192.0.2.1:9")]

    def test_a_client_that_closes_its_half_within_one(self) -> None:
        stream = self.connect(client_hello())
        stream.protocol.readConnectionLost()
        assert self.refused == [("tls-handshake", "192.0.2.1:9")]
        self.house.turn()
        assert stream.lost
        assert len(self.refused) == 1

    def test_a_connection_without_a_byte_is_none(self) -> None:
        self.connect(b"").lose()
        self.connect(b"").protocol.readConnectionLost()
        assert self.refused == []


class EndTests(SynchronousTestCase):
    """The end of the stream below, without a close_notify"""

    def client(self, version: ssl.TLSVersion) -> TlsClient:
        self.house = serve(version)
        client = publisher(self.house)
        assert isinstance(client, TlsClient)
        return client

    def test_the_connection_is_closed(self) -> None:
        for version in (V12, V13):
            client = self.client(version)
            client.end.readConnectionLost()
            assert client.stream.losing
            self.house.turn()
            assert client.stream.lost
            assert self.house.broker.counters.refused == 0

    def test_nothing_more_is_sent_to_a_client_that_does_not_read(self) -> None:
        for version in (V12, V13):
            client = self.client(version)
            client.stream.stop_reading()
            client.send(PING * 100)
            client.end.readConnectionLost()
            assert client.stream.aborted

    def test_after_a_close_notify_the_rest_is_sent(self) -> None:
        client = self.client(V13)
        client.stream.stop_reading()
        client.send(PING * 100)
        client.end_output()
        client.end.readConnectionLost()
        assert not client.stream.aborted
        client.stream.read()
        self.house.pump()
        assert client.take() == PONG * 100


class WithoutTlsTests(SynchronousTestCase):
    """Requests of HTTP on a port that speaks HTTP over TLS"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.refused: list[tuple[str, str]] = []

    def connect(self, sent: bytes) -> WebStream:
        clock = self.house.clock
        stream = WebStream(clock, CLIENT, (ITCPTransport,))
        tls_end(
            self.house.factory, stream, clock,
            lambda reason, client: self.refused.append((reason, client)),
        )  # fmt: skip
        stream.feed(sent)
        return stream

    def test_they_are_answered(self) -> None:
        for method in ("GET", "DELETE", "OPTIONS"):
            self.refused.clear()
            stream = self.connect(f"{method} /healthz HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            stream.feed(b"GET / HTTP/1.1\r\n")
            answer = Answer(bytes(stream.received), method)
            assert answer.error == (400, "tls-plaintext")
            assert answer.json["message"] == "this port speaks TLS; use https:"
            assert (answer.rest, stream.losing) == (b"", True)
            stream.lose()
            assert self.refused == [("tls-plaintext", "192.0.2.1:9")]
        assert self.house.broker.counters.connections == 0

    def test_other_clients_are_not(self) -> None:
        for sent in (client_hello(), b"\xfe\xca\x01\x07\x00\x00\x00\x07\x05alice"):
            assert b"HTTP" not in self.connect(sent).received
