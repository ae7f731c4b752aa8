"""The limits of every connection: memory, quotas, idle time."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import ITransport
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import CONNECTION_BYTES, BrokerLimits
from pubsub.wire.connection import ConnectionFactory
from tests.unit.connections import Frames, Lines, LongFrames, Setup
from tests.unit.streams import Client


class MemoryTests(SynchronousTestCase):
    """The memory of partial frames"""

    def test_a_partial_frame_is_charged_from_4_kib_on(self) -> None:
        setup = Setup(Lines)
        memory = setup.broker.memory
        client, connection = setup.connect()
        start = memory.used
        assert start == CONNECTION_BYTES
        client.send(b"x" * 500)
        assert memory.used == start
        client.send(b"x" * 5000)
        assert memory.used == start + 5500
        assert connection.held == 5500
        assert memory.holders == {connection}
        client.send(b"\n")
        assert memory.used == start
        assert not memory.holders

    def test_it_is_released_at_any_end_of_the_connection(self) -> None:
        for end in ("close", "abort", "lose", "drain"):
            setup = Setup(Lines)
            client, connection = setup.connect()
            client.send(b"x" * 900)
            client.send(b"x" * 9000)
            assert connection.held == 9900
            match end:
                case "close":
                    connection.close(b"no")
                case "abort":
                    connection.abort("why")
                case "drain":
                    connection.drain()
            client.stream.lose()
            assert setup.broker.memory.used == 0, end
            assert not setup.broker.memory.holders
            assert connection.ends == 1

    def test_the_largest_holder_is_evicted_after_the_wait(self) -> None:
        setup = Setup(Lines, BrokerLimits(max_memory=60_000, memory_seconds=5), frame_seconds=0)
        setup.broker.startService()
        clients = [setup.connect() for _ in range(3)]
        for (client, _), size in zip(clients, (5_000, 50_000, 6_000), strict=True):
            client.send(b"x")
            client.send(b"x" * size)
        assert bool(setup.broker.memory.full)
        for _ in range(5):
            setup.clock.advance(1)
        assert not any(client.closed for client, _ in clients)
        setup.clock.advance(1)
        assert [client.closed for client, _ in clients] == [False, True, False]
        assert not setup.broker.memory.full
        for _ in range(20):
            setup.clock.advance(1)
        assert [client.closed for client, _ in clients] == [False, True, False]

    def at_bound(self, **settings: Any) -> tuple[Setup, Client, Frames]:
        """Return a client with the first 20,000 bytes of a frame, which were all there was."""
        setup = Setup(LongFrames, BrokerLimits(max_memory=20_000), frame_seconds=3, **settings)
        setup.broker.startService()
        client, connection = setup.connect()
        client.send((40_000).to_bytes(4, "big"))
        assert not client.stream.paused
        client.send(bytes(20_000))
        assert setup.broker.memory.full
        return setup, client, connection

    def test_at_the_bound_the_rest_of_a_frame_is_not_read(self) -> None:
        setup, client, connection = self.at_bound()
        assert client.stream.paused
        setup.broker.memory.reconfigure({"max-memory": 50_000})
        assert not client.stream.paused
        client.send(bytes(20_000))
        assert connection.frames == [bytes(40_000)]
        for _ in range(10):
            setup.clock.advance(1)
        assert not client.closed

    def test_a_frame_for_which_there_is_no_room_in_time(self) -> None:
        setup, client, _ = self.at_bound(idle_timeout=1)
        for _ in range(3):
            setup.clock.advance(1)
        assert not client.closed
        setup.clock.advance(1)
        assert client.take() == b"no: memory"
        client.stream.lose()
        assert setup.broker.memory.used == 0
        assert setup.broker.counters.refusals == {("toy", "memory"): 1}

    def test_a_frame_of_a_client_that_is_held_for_another_reason_may_take_longer(self) -> None:
        setup, client, connection = self.at_bound()
        connection.hold("another")
        for _ in range(10):
            setup.clock.advance(1)
        assert not client.closed
        setup.broker.memory.reconfigure({"max-memory": 0})
        assert client.stream.paused
        connection.release("another")
        assert not client.stream.paused

    def test_a_client_that_ends_at_the_bound_is_forgotten(self) -> None:
        setup, client, connection = self.at_bound()
        client.stream.lose()
        assert setup.broker.memory.used == 0
        assert connection.ends == 1

    def test_at_the_memory_bound_no_connection_is_admitted(self) -> None:
        setup = Setup(limits=BrokerLimits(max_memory=CONNECTION_BYTES))
        setup.connect()
        client, _ = setup.connect()
        assert client.take() == b"no: memory"
        assert client.closed


class DoorTests(SynchronousTestCase):
    """Admission"""

    def test_a_connection_over_the_quota_is_refused_and_not_counted(self) -> None:
        setup = Setup(max_connections=1)
        setup.connect()
        client, connection = setup.connect()
        assert client.take() == b"no: limit-reached"
        assert client.closed
        client.send(b"\x01a")
        assert connection.frames == []
        assert setup.broker.counters.refusals == {("toy", "limit-reached"): 1}
        assert setup.broker.counters.connections == setup.listener.quota.open == 1
        assert len(setup.broker.clients) == 1
        client.stream.lose()
        assert setup.listener.quota.open == 1

    def test_the_quota_for_an_address_ignores_the_port(self) -> None:
        setup = Setup(max_connections_per_address=2)
        hosts = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.1"]
        clients = [setup.connect(IPv4Address("TCP", h, i))[0] for i, h in enumerate(hosts, 1)]
        assert [client.closed for client in clients] == [False, False, False, True]
        clients[0].stream.lose()
        again, _ = setup.connect(IPv4Address("TCP", "192.0.2.1", 99))
        assert not again.closed

    def test_the_quota_for_an_address_covers_a_network_of_ipv6(self) -> None:
        setup = Setup(max_connections_per_address=2)
        hosts = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "2001:db8::ff:3", "fe80::1%eth0"]
        clients = [setup.connect(IPv6Address("TCP", h, i))[0] for i, h in enumerate(hosts, 1)]
        assert [client.closed for client in clients] == [False, False, False, True, False]
        for client in clients:
            client.stream.lose()
        assert setup.listener.quota.open == 0

    def test_a_client_has_its_address_as_its_label(self) -> None:
        _, connection = Setup().connect(IPv4Address("TCP", "192.0.2.7", 4711))
        assert connection.label == "192.0.2.7:4711"
        _, connection = Setup().connect(UNIXAddress(b""), (ITransport,))
        assert connection.label == "unix"

    def test_a_factory_keeps_its_listener(self) -> None:
        listener = Setup().listener
        factory = ConnectionFactory(listener)
        assert factory.listener is listener
        assert not factory.noisy


class IdleTests(SynchronousTestCase):
    """The idle timeout"""

    def silent_after(self, seconds: float, timeout: object) -> tuple[Client, Setup]:
        setup = Setup(idle_timeout=timeout)
        setup.broker.startService()
        client, _ = setup.connect()
        for _ in range(int(seconds)):
            setup.clock.advance(1)
        return client, setup

    def test_an_idle_client_is_disconnected(self) -> None:
        client, _ = self.silent_after(5, 5)
        assert not client.closed
        client, setup = self.silent_after(6, 5)
        assert client.take() == b"bye"
        assert client.closed
        assert setup.broker.counters.refusals == {("toy", "idle"): 1}

    def test_there_is_no_timeout_by_default(self) -> None:
        client, _ = self.silent_after(1000, 0)
        assert not client.closed

    def test_any_byte_resets_the_timeout(self) -> None:
        client, setup = self.silent_after(4, 5)
        client.send(b"\x09")
        for _ in range(5):
            setup.clock.advance(1)
        assert not client.closed

    def test_a_client_that_is_not_read_is_not_idle(self) -> None:
        client, setup = self.silent_after(4, 5)
        connection = client.protocol
        connection.hold("reason")
        for _ in range(100):
            setup.clock.advance(1)
        assert not client.closed
