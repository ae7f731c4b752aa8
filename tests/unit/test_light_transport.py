"""The light transport, and its replacement by Twisted's without a loss."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet import main, tcp
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IConsumer,
    IHalfCloseableProtocol,
    IPushProducer,
    ISystemHandle,
    ITCPTransport,
)
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from pubsub.tuning import DIRECT_TRANSPORT, LIGHT_TRANSPORT, TUNED
from pubsub.wire.direct_transport import READ_BYTES, DirectTransport
from pubsub.wire.light_transport import LightTransport, serve, use_transports
from tests.unit.direct_links import Link, Peer, Port, Producer, Reactor
from tests.unit.tunings import without

DONE = Failure(ConnectionDone())


@implementer(IPushProducer, IHalfCloseableProtocol)
class Own(Producer, Peer):
    """A protocol that is its own producer, like those of the broker."""

    def readConnectionLost(self) -> None:
        self.calls.append("read lost")

    def writeConnectionLost(self) -> None:
        self.calls.append("write lost")


class LightCase(SynchronousTestCase):
    """A connection that begins with a light transport."""

    def setUp(self) -> None:
        self.link = Link(serve, Own())
        self.addCleanup(self.link.close)
        self.light: LightTransport = self.link.transport
        assert type(self.light) is LightTransport
        self.light.registerProducer(self.link.protocol, True)

    @property
    def is_light(self) -> bool:
        assert self.link.reactor.readers in ([], [self.link.transport]), "one reads, or none"
        return self.link.transport is self.light


class PlaceTests(LightCase):
    """Replacement"""

    def test_reading_and_complete_sends_need_no_replacement(self) -> None:
        for _ in range(3):
            self.light.write(b"hello")
            self.link.theirs.send(b"hello")
            assert self.light.doRead() is None
            assert self.light.doRead() is None, "nothing is there"
        self.light.getPeer()
        assert self.is_light
        self.link.read()
        assert self.link.got == b"hello" * 3

    def test_unsent_data_is_passed_to_a_transport_that_pauses_and_resumes(self) -> None:
        data = b"".join(b"%07d\n" % number for number in range(100_000))
        self.light.write(data)
        assert not self.is_light
        assert self.link.protocol.calls == ["pause"]
        assert self.link.finish() == data
        assert self.link.protocol.calls == ["pause", "resume"]

    def test_calls_of_the_first_transport_are_forwarded(self) -> None:
        self.light.write(b"x" * 1_000_000)
        self.light.write(b"last")
        assert self.link.finish() == b"x" * 1_000_000 + b"last"
        self.light.loseConnection()
        assert self.link.transport.disconnecting

    def test_the_replacement_keeps_the_descriptor_and_read_size(self) -> None:
        got: list[bytes] = []
        self.link.protocol.dataReceived = got.append  # type: ignore[method-assign, assignment]
        self.light.bufferSize = 3
        number = self.light.fileno()
        full = self.light.full()
        assert self.light.full() is full
        assert type(full) is DirectTransport
        assert (self.light.fileno(), full.fileno()) == (number, number)
        self.link.theirs.send(b"hello")
        full.doRead()
        full.doRead()
        assert got == [b"hel", b"lo"]
        assert not self.is_light

    def test_a_producer_is_registered_with_the_replacement(self) -> None:
        link = Link(serve)
        self.addCleanup(link.close)
        producer = Producer()
        link.transport.registerProducer(producer, True)
        assert type(link.transport) is LightTransport
        full: Any = link.transport.full()
        assert full.producer is producer

    def test_a_producer_registered_later_is_registered_once(self) -> None:
        link = Link(serve, Own())
        self.addCleanup(link.close)
        light = link.transport
        assert light.full().producer is None
        light.registerProducer(link.protocol, True)
        assert link.transport.producer is link.protocol
        with pytest.raises(RuntimeError):
            light.registerProducer(Producer(), True)

    def test_a_second_producer_is_refused(self) -> None:
        with pytest.raises(RuntimeError):
            self.light.registerProducer(Producer(), True)

    def test_it_provides_the_interfaces_of_twisteds_transports(self) -> None:
        for interface in (ITCPTransport, ISystemHandle, IConsumer, IPushProducer):
            assert interface.implementedBy(DirectTransport)
            assert verifyObject(interface, self.light)
        assert self.is_light

    def test_pausing_stops_reading(self) -> None:
        self.light.pauseProducing()
        assert self.link.reactor.readers == []
        self.light.resumeProducing()
        assert self.link.reactor.readers == [self.link.transport]

    def test_socket_options_are_set_on_the_replacement(self) -> None:
        self.light.setTcpKeepAlive(True)
        assert self.light.getTcpKeepAlive()
        assert not self.is_light


class EndTests(LightCase):
    """The end of a connection"""

    def lost(self) -> list[str]:
        assert self.light.fileno() == -1
        assert self.link.reactor.readers == []
        self.light.write(b"late")
        assert self.link.theirs.recv(10) == b""
        return self.link.protocol.calls

    def test_a_lost_connection_is_closed_and_reported_once(self) -> None:
        # Like the reactor, which removes the reader first.
        self.link.reactor.removeReader(self.light)
        self.light.connectionLost(Failure(ConnectionLost()))
        self.light.connectionLost(Failure(ConnectionLost()))
        assert self.lost() == ["stop", "lost"]

    def test_a_half_close_by_the_peer_is_reported_and_reading_stops(self) -> None:
        self.link.theirs.shutdown(socket.SHUT_WR)
        assert self.light.doRead() is main.CONNECTION_DONE
        self.link.reactor.removeReader(self.light)
        self.light.readConnectionLost(DONE)
        assert self.link.protocol.calls == ["read lost"]
        assert self.link.reactor.readers == []
        self.light.write(b"the answer")
        self.link.read()
        assert self.link.got == b"the answer"

    def test_losing_the_connection_sends_written_data_first(self) -> None:
        self.light.write(b"x" * 100_000)
        self.light.loseConnection()
        assert len(self.link.finish()) == 100_000

    def test_a_half_close_is_reported_to_the_protocol(self) -> None:
        self.light.write(b"last")
        self.light.loseWriteConnection()
        assert self.link.finish() == b"last"
        assert self.link.protocol.calls[-1] == "write lost"

    def test_an_abort_is_immediate(self) -> None:
        self.light.abortConnection()
        for call, arguments in self.link.reactor.later:
            call(*arguments)
        assert self.lost()[-1] == "lost"


class AddressTests(SynchronousTestCase):
    """getPeer"""

    def made(self, *client: Any) -> Any:
        ours, theirs = socket.socketpair()
        theirs.close()
        reactor = Reactor()
        transport: Any = serve(ours, Own(), client, Port(reactor), 7, reactor)  # type: ignore[arg-type]
        self.addCleanup(transport.connectionLost, DONE)
        return transport

    @given(st.ip_addresses(v=4).map(str), st.integers(0, 65535))
    @example("0.0.0.0", 0)
    @example("255.255.255.255", 65535)
    def test_ipv4(self, host: str, number: int) -> None:
        made = self.made(host, number)
        assert type(made) is LightTransport
        for transport in (made, made.full()):
            assert transport.getPeer() == IPv4Address("TCP", host, number)
        made.connectionLost(DONE)

    @given(st.ip_addresses(v=6).map(str), st.integers(0, 65535))
    @example("::", 0)
    @example("::1", 65535)
    @example("::ffff:192.0.2.1", 1)
    @example("::192.0.2.1", 1)
    def test_ipv6(self, host: str, number: int) -> None:
        # As the system formats it, which differs from Python for some addresses.
        host = socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, host))
        made = self.made(host, number, 0, 0)
        assert type(made) is LightTransport
        for transport in (made, made.full()):
            assert transport.getPeer() == IPv6Address("TCP", host, number)
        made.connectionLost(DONE)

    def test_an_address_keeps_its_scope(self) -> None:
        made = self.made("fe80::1%lo", 4711, 0, 1)
        kind = type(made)
        assert kind is DirectTransport
        assert made.bufferSize == READ_BYTES
        assert made.getPeer() == IPv6Address("TCP", "fe80::1%lo", 4711, 0, 1)


class TuningTests(SynchronousTestCase):
    """The transports of a port"""

    def test_each_can_be_turned_off(self) -> None:
        for tuning, made in (
            (TUNED, serve),
            (without(LIGHT_TRANSPORT), DirectTransport),
            (without(DIRECT_TRANSPORT), tcp.Server),
            (without(DIRECT_TRANSPORT, LIGHT_TRANSPORT), tcp.Server),
        ):
            port = tcp.Port(0, Factory())
            use_transports(port, tuning)
            assert port.transport is made
