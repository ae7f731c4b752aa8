"""A connection over TLS: the memory and work that a client can cause, and its end."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import trustme
from cryptography.x509 import load_pem_x509_certificate
from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.broker.listeners.tls_settings import TLS_SETTINGS
from pubsub.settings import read_all
from pubsub.wire.server_tls import load_tls
from pubsub.wire.tls_input import STREAM_BYTES
from tests.unit import cafe_wire as wire
from tests.unit.cafe_wire import PING, PONG
from tests.unit.key_updates import REQUESTED, Sender
from tests.unit.streams import Client, House, Stream, logged
from tests.unit.tls_house import CAFE, publisher, serve
from tests.unit.tls_streams import V12, V13, TlsClient, client_context, over_tls, tls_end
from tests.unit.web import HOME, WebHouse, WebStream


def subscriber(house: House) -> Client:
    """Return a subscriber of the topic."""
    client = house.connect("cafe")
    client.send(wire.hs_sub(b"\1", b"bob"))
    house.pump(3)
    client.take()
    house.clock.advance(1)
    return client


def stalled(house: House, sends: Callable[[bytes], bytes]) -> Stream:
    """Return the transport of a client that sends this part of its first message."""
    address = IPv4Address("TCP", "192.0.2.1", 9)
    stream = Stream(house.clock, address)
    listener = house.listeners["cafe"]
    tls_end(
        house.factories["cafe"], stream, house.clock, listener.refuse, listener.memory,
        frame_seconds=lambda: listener.frame_seconds,
    )  # fmt: skip
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(V13).wrap_bio(incoming, outgoing)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        stream.feed(sends(outgoing.read()))
    return stream


def measured(client: TlsClient) -> list[int]:
    """Return the list of the sizes of the pieces that OpenSSL is given from now on."""
    sizes: list[int] = []
    connection = client.end._tlsConnection

    class Measured:
        def bio_write(self, data: bytes) -> None:
            sizes.append(len(data))
            connection.bio_write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

    client.end._tlsConnection = cast(Any, Measured())
    return sizes


class KeyUpdateTests(SynchronousTestCase):
    """Messages of TLS itself, which no protocol sees"""

    def setUp(self) -> None:
        log = Path(self.enterContext(TemporaryDirectory()), "keys")
        context = client_context(V13)
        context.keylog_filename = str(log)
        self.addCleanup(client_context.cache_clear)
        self.house = serve()
        self.client = self.house.connect("cafe")
        self.listener = self.house.listeners["cafe"]
        self.used = self.house.broker.memory.used
        lines = [line.split() for line in log.read_text().splitlines()]
        (secret,) = [line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        self.sender = Sender(bytes.fromhex(secret))

    def updates(self, count: int) -> bytes:
        return b"".join([self.sender.update() for _ in range(count)])

    def test_they_are_answered(self) -> None:
        """Also those that do not fit into the first 32 KiB of answers."""
        self.client.stream.feed(self.sender.data(wire.hs_pub(1)) + self.updates(2000))
        self.client.stream.feed(self.sender.data(PING))
        self.house.pump(10)
        assert self.client.take().endswith(PONG)
        assert self.house.broker.memory.used <= self.used + 1000

    def test_data_between_them(self) -> None:
        got: list[bytes] = []
        self.patch(self.client.protocol, "dataReceived", got.append)  # type: ignore[no-untyped-call]
        sender, stream = self.sender, self.client.stream
        stream.feed(sender.data(b"a") + self.updates(1) + sender.data(b"") + sender.data(b"b"))
        assert got == [b"ab"]
        stream.feed(sender.data(b"c") + self.updates(2))
        stream.feed(sender.data(b"d"))
        assert got == [b"ab", b"c", b"d"]

    def test_others_are_served_between_them(self) -> None:
        stream = self.client.stream
        stream.feed(self.updates(3000))
        assert stream.paused
        before = len(stream.received)
        self.house.turn()
        assert len(stream.received) > before
        self.house.pump(10)
        assert not stream.paused

    def test_few_are_answered_in_a_tick(self) -> None:
        """Also if there are data between them, without which there is an end (see below)."""
        stream, answer = self.client.stream, 5 + len(REQUESTED) + 1 + 16
        self.client.protocol.dataReceived = lambda data: None  # type: ignore[method-assign]
        self.client.take()
        for sent in (self.updates(3000), b"".join(map(self.between, range(300)))):
            stream.feed(sent)
            assert 0 < len(stream.received) <= 150 * answer
            self.house.pump(40)
            assert not stream.paused
            assert len(stream.received) > 2900 * answer
            stream.received.clear()

    def between(self, number: int) -> bytes:
        return self.updates(10) + self.sender.data(bytes([number % 256]))

    def test_a_client_that_is_held_meanwhile_is_not_read_from(self) -> None:
        stream = self.client.stream
        stream.feed(self.updates(3000))
        self.client.protocol.hold("test")
        before = len(stream.received)
        self.house.pump(10)
        assert len(stream.received) == before
        assert stream.paused
        self.client.protocol.release("test")
        self.house.pump(10)
        assert len(stream.received) > before
        assert not stream.paused

    def test_a_client_that_does_not_read_the_answers_is_disconnected(self) -> None:
        self.client.stream.stop_reading()
        for _ in range(20):
            self.client.stream.feed(self.updates(200) + self.sender.data(PING[:1]))
            self.house.turn()
            if self.client.stream.aborted:
                break
        assert self.client.stream.aborted
        assert self.house.broker.counters.refusals["cafe", "tls-flood"] == 1
        self.house.pump()
        assert self.house.broker.memory.used == self.used - CONNECTION_BYTES - STREAM_BYTES

    def test_a_client_that_sends_nothing_else_is_disconnected(self) -> None:
        for _ in range(100):
            self.client.stream.feed(self.updates(200))
            self.house.turn()
            if self.client.stream.aborted:
                break
        assert self.client.stream.aborted
        assert self.house.broker.counters.refusals["cafe", "tls-flood"] == 1


class InputTests(SynchronousTestCase):
    """Input that waits"""

    def test_a_record_may_arrive_byte_by_byte(self) -> None:
        for version in (V12, V13):
            house = serve(version)
            client = publisher(house)
            assert isinstance(client, TlsClient)
            for byte in client.records(PING * 100):
                client.stream.feed(bytes([byte]))
            house.pump(3)
            assert client.take() == PONG * 100

    def test_input_of_a_held_client_is_charged(self) -> None:
        house = serve()
        memory = house.broker.memory
        client = publisher(house)
        assert isinstance(client, TlsClient)
        used = memory.used
        client.protocol.hold("test")
        client.stream.paused = False
        client.stream.feed(client.records(PING * 10_000))
        assert memory.used - used > 70_000
        assert client.end._input in memory.holders
        client.protocol.release("test")
        house.pump(3)
        assert client.take() == PONG * 10_000
        assert memory.used == used

    def test_it_can_be_evicted(self) -> None:
        house = serve()
        used = house.broker.memory.used
        client = publisher(house)
        assert isinstance(client, TlsClient)
        client.protocol.hold("test")
        client.stream.paused = False
        client.stream.feed(client.records(PING * 10_000))
        (holder,) = house.broker.memory.holders
        holder.evict("memory")
        house.pump()
        assert client.stream.aborted
        # The session is kept.
        assert house.broker.memory.used <= used + 1000

    def test_input_after_the_end_of_the_output_of_a_held_client(self) -> None:
        """It is dropped, as in RFC 8446 §6.1; the client gets the messages that it is owed."""
        house = serve()
        client = publisher(house)
        assert isinstance(client, TlsClient)
        client.stream.stop_reading()
        client.send(PING * 20_000)
        client.end_output()
        used, sizes = house.broker.memory.used, measured(client)
        for _ in range(20):
            client.stream.feed(bytes(100_000))
        assert house.broker.memory.used <= used
        assert sizes == []
        client.stream.read()
        received = b""
        for _ in range(20):
            house.turn()
            received += client.take()
        assert received == PONG * 20_000

    def test_close_notify_ends_both_directions_before_tls_1_3(self) -> None:
        for version, is_half in ((V13, True), (V12, False)):
            house = serve(version)
            client = publisher(house)
            assert isinstance(client, TlsClient)
            ended: list[bool] = []
            self.patch(client.protocol, "readConnectionLost", lambda: ended.append(True))  # type: ignore[no-untyped-call]  # noqa: B023
            client.end_output()
            house.pump()
            assert (ended, client.stream.lost) == ([True] * is_half, not is_half)

    def test_input_behind_a_record_that_is_damaged(self) -> None:
        """The connection has ended, whatever the client still sends."""
        for version in (V12, V13):
            house = serve(version)
            used = house.broker.memory.used
            client = publisher(house)
            assert isinstance(client, TlsClient)
            client.stream.feed(b"\x17\x03\x03\0\x30" + bytes(48) + client.records(PING))
            client.stream.feed(client.records(PING * 10_000))
            house.pump()
            assert client.stream.lost
            assert client.protocol.closing
            assert house.broker.memory.used <= used + 1000

    def test_openssl_gets_small_pieces(self) -> None:
        """Its buffers never shrink."""
        house = serve()
        client = publisher(house)
        assert isinstance(client, TlsClient)
        sizes = measured(client)
        client.send(PING * 18_000)
        assert max(sizes) <= 34_000
        house.pump(3)
        assert client.take() == PONG * 18_000


class RecordTests(SynchronousTestCase):
    """``frame-seconds`` of a record that arrives in part"""

    def start(self) -> tuple[House, TlsClient]:
        house = serve(frame_seconds=5)
        client = publisher(house)
        assert isinstance(client, TlsClient)
        return house, client

    def ends_after(self, house: House, client: TlsClient, seconds: float) -> None:
        house.advance(seconds - 0.5)
        assert not client.stream.closed
        house.advance(1)
        assert client.stream.aborted
        assert house.broker.counters.refusals == {("cafe", "frame-timeout"): 1}

    def test_it_is_given_up(self) -> None:
        for version in (V12, V13):
            for before, part in ((b"", 3), (b"", 5), (b"", 20), (PING, 3), (PING, 20)):
                house = serve(version, frame_seconds=5)
                client = publisher(house)
                assert isinstance(client, TlsClient)
                whole = client.records(before)
                client.stream.feed(whole + client.records(PING * 100)[:part])
                self.ends_after(house, client, 5)

    def test_dripping_does_not_help(self) -> None:
        house, client = self.start()
        for byte in client.records(PING * 100)[:9]:
            client.stream.feed(bytes([byte]))
            house.advance(0.5)
        self.ends_after(house, client, 0.5)

    def test_each_record_has_its_own_time(self) -> None:
        house, client = self.start()
        rest = b""
        for _ in range(5):
            # Others are not served before the next one, which would renew the time, too.
            record = client.records(PING)
            client.stream.feed(rest + record[:20])
            rest = record[20:]
            house.advance(4)
        client.stream.feed(rest)
        house.advance(100)
        assert not client.stream.closed
        assert client.take() == PONG * 5

    def test_the_time_in_which_the_client_is_held_does_not_count(self) -> None:
        house, client = self.start()
        client.stream.feed(client.records(PING)[:20])
        client.protocol.hold("test")
        house.advance(100)
        client.protocol.release("test")
        self.ends_after(house, client, 5)

    def test_zero_is_no_limit(self) -> None:
        house = serve(frame_seconds=0)
        client = publisher(house)
        assert isinstance(client, TlsClient)
        client.stream.feed(client.records(PING)[:20])
        house.advance(1000)
        assert not client.stream.closed

    def test_a_reload_can_end_the_limit(self) -> None:
        house, client = self.start()
        client.stream.feed(client.records(PING)[:20])
        listener = house.listeners["cafe"]
        listener.reconfigure({**listener.settings, "frame-seconds": 0})
        house.advance(1000)
        assert not client.stream.closed

    def test_the_limit_of_handshakes_applies_to_theirs(self) -> None:
        house = serve(frame_seconds=2, handshake_seconds=6)
        stream = stalled(house, lambda hello: hello[:20])
        house.advance(5.5)
        assert not stream.closed
        house.advance(1)
        assert stream.lost
        assert house.broker.counters.refusals == {("cafe", "handshake-timeout"): 1}

    def test_nothing_is_left_behind(self) -> None:
        house, client = self.start()
        calls = len(house.clock.getDelayedCalls())
        first, second = client.records(PING), client.records(PING)
        client.stream.feed(first[:20])
        client.stream.feed(first[20:] + second[:20])
        client.stream.lose()
        house.pump()
        assert len(house.clock.getDelayedCalls()) <= calls


class HandshakeTests(SynchronousTestCase):
    """Handshakes"""

    def test_a_list_of_many_authorities(self) -> None:
        """The broker's part of the handshake is longer than OpenSSL's buffer is read at a time."""
        directory = Path(self.enterContext(TemporaryDirectory()))
        authority = trustme.CA(organization_name="o" * 60, organization_unit_name="u" * 60)
        for name, blob in (
            ("own", authority.issue_cert("broker.example").private_key_and_cert_chain_pem),
            ("ca", authority.cert_pem),
        ):
            (directory / name).touch(mode=0o600)
            (directory / name).write_bytes(blob.bytes())
        given = {"cert": str(directory / "own"), "ca": str(directory / "ca"), "client": "optional"}
        tls = load_tls(read_all(TLS_SETTINGS, {f"tls-{k}": v for k, v in given.items()}))
        assert tls is not None
        ca = load_pem_x509_certificate(authority.cert_pem.bytes())
        for _ in range(400):
            tls.context.add_client_ca(ca)
        for version in (V12, V13):
            house = House(CAFE)
            house.attach = over_tls(version, lambda: tls)
            publisher(house)

    def test_each_stage_has_a_deadline(self) -> None:
        for sends in (
            lambda hello: b"",
            lambda hello: hello[:3],
            lambda hello: hello[:-1],
            lambda hello: hello,
        ):
            house = serve(handshake_seconds=3)
            used = house.broker.memory.used
            stream = stalled(house, sends)
            house.advance(2.5)
            assert not stream.closed
            house.advance(1)
            assert stream.lost
            assert house.broker.counters.refusals == {("cafe", "handshake-timeout"): 1}
            assert house.broker.memory.used == used

    def test_what_openssl_keeps_of_one_is_charged(self) -> None:
        hello = b"\x01" + (131_000).to_bytes(3, "big") + b"\x03\x03" + bytes(100_000)
        parts = [hello[at : at + 16_000] for at in range(0, len(hello), 16_000)]
        for again in (False, True):
            house = serve(handshake_seconds=3)
            memory = house.broker.memory
            used = memory.used
            stream = stalled(house, lambda own: b"")
            for part in parts:
                stream.feed(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part)
            assert memory.used >= used + STREAM_BYTES + len(hello)
            (holder,) = memory.holders
            if again:
                holder.evict("memory")
            else:
                house.advance(8)
            house.pump()
            assert stream.lost, again
            assert memory.used == used
            publisher(house)
            assert memory.used < used + STREAM_BYTES + CONNECTION_BYTES + 1000

    def test_a_client_that_is_refused_is_not_kept(self) -> None:
        """It has no TLS yet, and cannot be told anything."""
        for limit in ({"max_connections": 1}, {"max_connections_per_address": 1}):
            house = serve(V13, **limit)
            lines = logged(self)
            admitted = stalled(house, lambda hello: hello)
            used, calls = house.broker.memory.used, len(house.clock.getDelayedCalls())
            refused = [stalled(house, sends) for sends in (lambda hello: b"", bytes)]
            house.turn()
            assert all(stream.lost for stream in refused)
            assert house.broker.memory.used == used
            assert len(house.clock.getDelayedCalls()) == calls
            assert house.broker.counters.refusals == {("cafe", "limit-reached"): 2}
            assert not [line for line in lines if "disconnected" in line]
            assert not admitted.closed

    def test_an_http_client_that_is_refused_is_not_kept(self) -> None:
        house = WebHouse(max_connections_per_address=1)
        house.connect(HOME.host)
        stream = WebStream(house.clock, HOME, (ITCPTransport, IPushProducer))
        tls_end(house.factory, stream, house.clock)
        house.clock.advance(0)
        assert stream.lost
        assert house.broker.counters.refusals == {("http", "limit-reached"): 1}

    def test_many_half_open_ones(self) -> None:
        house = serve(handshake_seconds=3)
        timers = len(house.clock.getDelayedCalls())
        streams = [stalled(house, lambda hello: hello) for _ in range(200)]
        assert len(house.clock.getDelayedCalls()) <= timers + 1
        assert house.broker.memory.used >= 200 * (CONNECTION_BYTES + STREAM_BYTES)
        assert len(publisher(house).take()) == 0
        house.advance(8)
        assert all(stream.lost for stream in streams)
        assert house.broker.counters.connections == 1


class SlowTests(SynchronousTestCase):
    """Subscribers that do not read; ``auto`` and ``pause`` are part of the contract"""

    def flood(self, version: ssl.TLSVersion, **settings: object) -> tuple[House, Client, Client]:
        house = serve(version, slow_bytes=400_000, **settings)
        slow, source = subscriber(house), publisher(house)
        slow.stream.stop_reading()
        for number in range(40):
            source.send(wire.publish(1, b"%02d" % number * 20_000))
            house.turn()
        return house, slow, source

    def test_drop(self) -> None:
        for version in (V12, V13):
            house, slow, source = self.flood(version, slow_consumer="drop")
            assert house.broker.memory.used < 1_000_000
            slow.stream.read()
            house.pump()
            got = list(wire.payloads(slow.take()))
            assert house.broker.counters.dropped == 40 - len(got) > 0
            source.send(wire.publish(1, b"live"))
            house.clock.advance(1)
            assert list(wire.payloads(slow.take())) == [b"live"]

    def test_disconnect(self) -> None:
        for version in (V12, V13):
            house, slow, source = self.flood(version, slow_consumer="disconnect")
            assert slow.stream.aborted
            source.send(PING)
            house.pump(3)
            assert source.take() == PONG
            house.advance(1)
            source.stream.lose()
            assert house.broker.counters.connections == 0
            assert not house.broker.memory.holders

    def test_an_abrupt_end_with_output_pending(self) -> None:
        for version in (V12, V13):
            house = serve(version)
            used = house.broker.memory.used
            client = publisher(house)
            client.stream.stop_reading()
            for _ in range(5):
                client.send(PING * 10_000)
            assert client.stream.paused
            client.stream.lose()
            house.pump()
            assert not house.broker.memory.holders
            assert house.broker.memory.used <= used + 1000

    def test_a_slow_subscriber_that_ends_its_output(self) -> None:
        """In TLS 1.3 it gets the queue."""
        house = serve()
        slow, source = subscriber(house), publisher(house)
        assert isinstance(slow, TlsClient)
        slow.stream.stop_reading()
        bodies = [b"%02d" % number * 10_000 for number in range(10)]
        source.send(wire.publish(1, *bodies))
        house.turn()
        slow.end_output()
        slow.stream.read()
        received = b""
        for _ in range(20):
            house.turn()
            received += slow.take()
        assert list(wire.payloads(received)) == bodies
        assert slow.closed
