"""The PROXY header, and the streams of connections that begin with it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.protocols.haproxy._wrapper import HAProxyWrappingFactory
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from pubsub.broker.memory_budget import INPUT, MemoryBudget
from pubsub.wire.proxy_header import (
    BadHeader,
    ProxyHeader,
    certified_name,
    read_header,
)
from pubsub.wire.proxy_protocol import use_proxied_streams
from tests.unit.proxy_headers import ADDRESSES, LOCAL, SIGNATURE, field, header, tls_field

LINE = b"PROXY TCP4 192.0.2.9 192.0.2.1 4000 7070\r\n"
CLIENT, SERVER = IPv4Address("TCP", "192.0.2.9", 4000), IPv4Address("TCP", "192.0.2.1", 7070)
HERE = IPv4Address("TCP", "192.0.2.2", 7070)
SIXTH = socket.inet_pton(socket.AF_INET6, "2001:db8::9")
MALFORMED = (
    b"PROXY TCP4 192.0.2.9 192.0.2.1 x 7070\r\n",
    b"PROXY TCP4 192.0.2.9 192.0.2.1 4000 65536\r\n",
    b"PROXY TCP4 192.0.2.9 192.0.2.1 4000 -1\r\n",
    b"PROXY TCP4 192.0.2.9 192.0.2.1 +4000 7070\r\n",
    b"PROXY TCP4 192.0.2.9 192.0.2.1 4_000 7070\r\n",
    b"PROXY TCP4 evil.example 192.0.2.1 4000 7070\r\n",
    b"PROXY TCP4 \xff\xff 192.0.2.1 4000 7070\r\n",
    b"PROXY TCP4 2001:db8::9 192.0.2.1 4000 7070\r\n",
    b"PROXY TCP6 192.0.2.9 192.0.2.1 4000 7070\r\n",
    b"PROXY TCP4 192.0.2.9 192.0.2.1 4000\r\n",
    b"PROXY TCP4 192.0.2.9 192.0.2.1 4000 7070 more\r\n",
    b"PROXY UDP4 192.0.2.9 192.0.2.1 4000 7070\r\n",
    b"PROXY " + b"1" * 200,
    b"PROXY\r\n",
    header(command=0x31),
    header(command=0x22),
    header(family=0x13),
    header(family=0x41),
    header(addresses=ADDRESSES[:-1]),
    SIGNATURE + struct.pack("!BBH", 0x21, 0x11, 0xFFFF),
    b"\xfe\xca\x01\x00\x00\x00\x00",
    b"\x16\x03\x01",
    b"GET / HTTP/1.1\r\n",
    b"\r\n\r\n\0\r\nQUIX",
)


class ReadingTests(SynchronousTestCase):
    """``read_header``"""

    def test_both_versions(self) -> None:
        sixth = b"PROXY TCP6 2001:db8::9 ::ffff:192.0.2.1 4000 7070\r\n"
        binary = header(family=0x21, addresses=SIXTH * 2 + ADDRESSES[8:])
        client = IPv6Address("TCP", "2001:db8::9", 4000)
        for data, source, destination in (
            (LINE, CLIENT, SERVER),
            (header(), CLIENT, SERVER),
            (header(family=0x12), CLIENT, SERVER),
            (sixth, client, IPv6Address("TCP", "::ffff:192.0.2.1", 7070)),
            (binary, client, IPv6Address("TCP", "2001:db8::9", 7070)),
        ):
            assert read_header(data + b"rest") == (ProxyHeader(source, destination), len(data))

    def test_paths_of_unix_sockets(self) -> None:
        data = header(family=0x31, addresses=b"/run/a".ljust(108, b"\0") + bytes(108))
        found = ProxyHeader(UNIXAddress(b"/run/a"), UNIXAddress(None))
        assert read_header(data) == (found, len(data))

    def test_headers_without_an_address(self) -> None:
        for data in (
            b"PROXY UNKNOWN\r\n",
            b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n",
            header(command=LOCAL),
            header(tls_field(b"ada"), command=LOCAL, family=0, addresses=b""),
            header(family=0, addresses=b""),
        ):
            assert read_header(data) == (ProxyHeader(), len(data))

    def test_the_longest_headers(self) -> None:
        line = b"PROXY UNKNOWN ".ljust(105, b"f")
        assert read_header(line + b"\r\n") == (ProxyHeader(), 107)
        assert read_header(line + b"f") is None
        for data in (line + b"f\r", line + b"f\r\n"):
            with pytest.raises(BadHeader):
                read_header(data)
        longest = header(field(0x04, bytes(16 * 1024 - 15)))
        assert read_header(longest) == (ProxyHeader(CLIENT, SERVER), 16 + 16 * 1024)
        with pytest.raises(BadHeader):
            read_header(header(field(0x04, bytes(16 * 1024 - 14)))[:16])

    def test_the_lowest_and_the_highest_port(self) -> None:
        found = read_header(b"PROXY TCP4 192.0.2.9 192.0.2.1 0 65535\r\n")
        assert found
        assert (found[0].source, found[0].destination) == (
            IPv4Address("TCP", "192.0.2.9", 0), IPv4Address("TCP", "192.0.2.1", 65535),
        )  # fmt: skip

    def test_malformed_headers(self) -> None:
        for data in MALFORMED:
            with pytest.raises(BadHeader):
                read_header(data)

    @given(st.sampled_from((LINE, header(), header(tls_field(b"ada")), b"PROXY UNKNOWN\r\n")))
    def test_a_header_in_pieces(self, data: bytes) -> None:
        assert all(read_header(data[:end]) is None for end in range(len(data)))

    @given(st.binary(max_size=80), st.sampled_from((b"", b"PROXY ", b"PROXY TCP4 ", header()[:13])))
    @example(b"PROXY UNKNOWN", b"")
    def test_any_bytes(self, data: bytes, before: bytes) -> None:
        try:
            found = read_header(before + data)
        except BadHeader:
            return
        assert found is None or found[1] <= len(before + data)


class NameTests(SynchronousTestCase):
    """``certified_name``"""

    def test_the_name_that_the_proxy_has_verified(self) -> None:
        fields = field(0x04, b"x") + tls_field("ädä".encode())
        assert certified_name(fields) == "ädä"
        found = read_header(header(fields))
        assert found
        assert found[0].certified_name == "ädä"

    def test_a_certificate_that_was_not_verified(self) -> None:
        assert certified_name(tls_field(b"ada", failed=1)) == ""

    def test_tls_without_a_certificate(self) -> None:
        assert certified_name(tls_field(b"ada", flags=0x01)) == ""
        assert certified_name(tls_field(b"ada", flags=0x05)) == "ada"

    def test_other_fields(self) -> None:
        assert certified_name(b"") == ""
        assert certified_name(field(0x20, b"\x07")) == ""
        assert certified_name(tls_field(b"\xff")) == ""
        assert certified_name(tls_field(b"ada") + b"\x20") == ""
        assert certified_name(b"\x22\xff\xff") == ""
        assert certified_name(tls_field(b"ada")[:-1]) == ""
        assert certified_name(tls_field(b"ada") + field(0x04, b"")) == "ada"

    def test_a_certificate_without_a_name(self) -> None:
        assert certified_name(field(0x20, b"\x07\0\0\0\0" + field(0x21, b"TLSv1.3"))) == ""

    @given(st.binary(max_size=60))
    def test_any_fields(self, data: bytes) -> None:
        assert isinstance(certified_name(data), str)


@implementer(IHandshakeListener, IHalfCloseableProtocol)
class _Client(Protocol):
    """The protocol above the header."""

    def __init__(self) -> None:
        self.events: list[bytes] = []

    def handshakeCompleted(self) -> None:
        self.events.append(b"handshake")

    def readConnectionLost(self) -> None:
        self.events.append(b"nothing more")

    def writeConnectionLost(self) -> None:
        self.events.append(b"all sent")

    def evict(self, reason: str) -> None:
        self.events.append(reason.encode())

    def dataReceived(self, data: bytes) -> None:
        self.events.append(data)


class StreamTests(SynchronousTestCase):
    """``ProxiedStream``"""

    def setUp(self) -> None:
        self.refused: list[tuple[str, str]] = []

        self.memory = MemoryBudget(0)

    def connect(self, proxy: object = SERVER) -> tuple[Any, StringTransport]:
        factory = HAProxyWrappingFactory(Factory.forProtocol(_Client))
        use_proxied_streams(
            factory, lambda reason, client: self.refused.append((reason, client)), self.memory
        )
        stream = factory.buildProtocol(None)
        transport = StringTransport(hostAddress=HERE, peerAddress=proxy)
        stream.makeConnection(transport)
        return stream, transport

    def test_input_after_the_header(self) -> None:
        for data in (LINE, header()):
            stream, _ = self.connect()
            assert (stream.getPeer(), stream.getHost()) == (SERVER, HERE)
            stream.dataReceived(data + b"first")
            stream.dataReceived(b"second")
            assert stream.wrappedProtocol.events == [b"handshake", b"first", b"second"]
            assert (stream.getPeer(), stream.getHost()) == (CLIENT, SERVER)

    def test_a_header_that_arrives_byte_by_byte(self) -> None:
        for data in (LINE, header(), b"PROXY UNKNOWN\r\n"):
            stream, _ = self.connect()
            for byte in data:
                stream.dataReceived(bytes((byte,)))
            assert stream.wrappedProtocol.events == [b"handshake"]
            assert self.refused == []

    def test_a_large_header_is_charged_while_it_is_incomplete(self) -> None:
        data = header(field(0x04, bytes(12_000)))
        ends: tuple[Callable[[Any], None], ...] = (
            lambda stream: stream.dataReceived(data[10_000:]),
            lambda stream: stream.connectionLost(Failure(ConnectionDone())),
        )
        for end in ends:
            stream, _ = self.connect()
            for at in range(0, 10_000, 1000):
                stream.dataReceived(data[at : at + 1000])
            assert (stream.held, self.memory.held[INPUT], self.memory.used) == (10_000,) * 3
            assert self.memory.holders == {stream}
            stream.evict("memory")
            assert stream.wrappedProtocol.events == [b"memory"]
            end(stream)
            assert (stream.held, self.memory.used, self.memory.holders) == (0, 0, set())

    def test_a_connection_without_a_header_is_counted_and_closed(self) -> None:
        for data in MALFORMED:
            self.refused.clear()
            stream, transport = self.connect()
            stream.dataReceived(data)
            stream.dataReceived(LINE)
            assert self.refused == [("proxy-header", "192.0.2.1:7070")]
            assert transport.disconnecting
            assert stream.wrappedProtocol.events == []

    def test_a_health_check_has_the_address_of_the_proxy(self) -> None:
        for data in (b"PROXY UNKNOWN\r\n", header(command=LOCAL)):
            stream, transport = self.connect()
            stream.dataReceived(data + b"check")
            assert stream.wrappedProtocol.events == [b"handshake", b"check"]
            assert (stream.getPeer(), stream.getHost()) == (SERVER, HERE)
            assert not transport.disconnecting

    def test_both_halves_of_the_end_are_passed_on(self) -> None:
        stream, _ = self.connect()
        stream.readConnectionLost()
        stream.writeConnectionLost()
        assert stream.wrappedProtocol.events == [b"nothing more", b"all sent"]

    def test_the_machine_of_the_proxy_is_not_that_of_the_broker(self) -> None:
        here = IPv4Address("TCP", "127.0.0.1", 4000)
        local = b"PROXY TCP4 127.0.0.1 127.0.0.1 4000 7070\r\n"
        unix = header(family=0x31, addresses=bytes(216))
        mapped = b"PROXY TCP6 ::ffff:127.0.0.1 ::1 4000 7070\r\n"
        for data in (local, unix, mapped):
            stream, _ = self.connect(SERVER)
            stream.dataReceived(data)
            assert stream.getPeer() == SERVER
        stream, _ = self.connect(here)
        stream.dataReceived(local)
        assert stream.getPeer() == here
        stream, _ = self.connect(UNIXAddress(None))
        stream.dataReceived(local)
        assert stream.getPeer() == here
