"""cafe over UDP: every rule of cafe §7."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import count
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.fanout import Fanout
from pubsub.backplane.memory_engine.memory import MemoryBackplane, MemoryEngine
from pubsub.protocols.cafe.open_ports import OpenPorts, open_ports, read_in_thread
from tests.unit import cafe_wire as wire
from tests.unit.cafe_udp import ALICE, BOB, CAROL, Udp, joined
from tests.unit.cafe_wire import DISCONNECT, GAP, PING, PONG, Cafe
from tests.unit.fakes import scratch


class OptionTests(SynchronousTestCase):
    """UDP is off by default"""

    def test_it_is_off_by_default(self) -> None:
        assert Cafe().factories["cafe"].datagram_protocol() is None
        assert Cafe(udp="on").factories["cafe"].datagram_protocol() is not None

    def test_each_peer_is_a_client_of_the_broker(self) -> None:
        udp = joined()
        port, *peers = udp.broker.clients
        assert port is udp.protocol
        assert len(peers) == 2
        assert udp.broker.counters.connections == 2

    def test_a_dismissed_peer_gets_a_goodbye_and_its_session_ends(self) -> None:
        udp = joined()
        _port, alice, bob = udp.broker.clients
        alice.dismiss("administrator")
        assert udp.take(ALICE) == [DISCONNECT]
        alice.dismiss("administrator")
        assert udp.take(ALICE) == []
        assert bob in udp.broker.clients
        assert alice not in udp.broker.clients
        assert udp.broker.counters.connections == 1


class DatagramTests(SynchronousTestCase):
    """cafe §7.1: frames in datagrams"""

    def test_a_datagram_may_hold_several_frames(self) -> None:
        udp = joined()
        assert udp.send(ALICE, wire.publish(1, b"a", b"b") + PING + wire.publish(1, b"c")) == [PONG]
        assert [wire.payloads(data) for data in udp.take(BOB)] == [[b"a"], [b"b"], [b"c"]]

    def test_the_broker_sends_one_frame_in_a_datagram(self) -> None:
        udp = joined()
        for payload in (b"a", b"b", b"x" * 2000):
            udp.send(ALICE, wire.publish(1, payload) + wire.publish(1, payload))
        assert [len(wire.payloads(data)) for data in udp.take(BOB)] == [1] * 6

    def test_frames_share_a_datagram_if_they_may(self) -> None:
        udp = joined(udp_packing="on")
        udp.send(ALICE, wire.publish(1, b"a", b"b") + PING + wire.publish(1, b"c"))
        (datagram,) = udp.take(BOB)
        assert wire.payloads(datagram) == [b"a", b"b", b"c"]

    def test_a_datagram_that_ends_inside_a_frame_is_malformed(self) -> None:
        for cut in (b"\xfe", PING[:6], wire.publish(1, b"cut")[:-1], wire.frame(0x77, b"xy")[:-1]):
            udp = joined()
            assert udp.send(ALICE, wire.publish(1, b"counts") + cut) == [wire.error(0x07)]
            assert [wire.payloads(data) for data in udp.take(BOB)] == [[b"counts"]]
            assert udp.send(ALICE, PING) == [wire.error(0x01)]
            assert udp.broker.counters.refusals[("cafe", "truncated-datagram")] == 1

    def test_parts_of_a_frame_are_not_joined_across_datagrams(self) -> None:
        udp = joined()
        udp.send(ALICE, PING[:4])
        assert udp.send(ALICE, PING[4:]) == [wire.error(0x07)]

    def test_frames_share_datagrams_of_1400_bytes(self) -> None:
        udp = joined(udp_packing="on")
        udp.send(ALICE, wire.publish(1, *[b"x" * 84] * 29))
        assert [len(data) for data in udp.take(BOB)] == [1400, 1400, 100]

    def test_one_byte_more_begins_another_datagram(self) -> None:
        udp = joined(udp_packing="on")
        udp.send(ALICE, wire.publish(1, b"x" * 600, b"y" * 769, b"z"))
        assert [len(data) for data in udp.take(BOB)] == [616, 785 + 17]

    def test_a_larger_frame_has_its_own_datagram(self) -> None:
        udp = joined(udp_packing="on")
        udp.send(ALICE, wire.publish(1, b"a", b"x" * 2000, b"b", b"c"))
        sizes = [[len(p) for p in wire.payloads(data)] for data in udp.take(BOB)]
        assert sizes == [[1], [2000], [1, 1]]

    def test_the_acknowledgment_has_its_own_datagram_and_messages_wait(self) -> None:
        udp = Udp()
        udp.join(ALICE, wire.hs_pub(1))
        assert udp.send(BOB, wire.hs_sub(b"\x01") + PING) == [wire.ack(2), PONG]
        udp.send(ALICE, wire.publish(1, b"hi"))
        udp.clock.advance(0.019)
        assert udp.take(BOB) == []
        udp.clock.advance(0.002)
        assert [wire.payloads(data) for data in udp.take(BOB)] == [[b"hi"]]

    def test_the_longest_message_for_udp_has_65491_bytes(self) -> None:
        udp = joined()
        stream = udp.subscriber(name=b"carol")
        sizes = (65_491, 65_492)
        alice = udp.publisher()
        for size in sizes:
            alice.send(wire.publish(1, b"x" * size))
        assert [len(data) for data in udp.take(BOB)] == [65_507]
        assert [len(p) for p in wire.payloads(stream.take())] == list(sizes)
        assert udp.broker.counters.drops == {("bob@192.0.2.2:4002", "cafe/1", "too-large"): 1}

    def test_an_empty_datagram_is_ignored(self) -> None:
        udp = joined()
        assert udp.send(ALICE, b"") == udp.send(CAROL, b"") == []
        assert udp.send(ALICE, PING) == [PONG]
        assert udp.broker.counters.refused == 0

    def test_messages_that_cannot_be_sent_are_counted(self) -> None:
        for packing in ("off", "on"):
            udp = joined(udp_packing=packing)
            udp.port.broken = BlockingIOError()
            udp.send(ALICE, wire.publish(1, *[b"lost"] * 300))
            udp.send(BOB, PING)
            drops = {("bob@192.0.2.2:4002", "cafe/1", "unsendable"): 300}
            assert udp.broker.counters.drops == drops
            udp.port.broken = None
            assert udp.send(BOB, PING) == [PONG]

    @given(st.binary(max_size=60), st.booleans())
    @example(b"", True)
    @example(b"", False)
    @example(DISCONNECT, True)
    @example(PING + PING, True)
    @example(PING[:-1], True)
    def test_any_datagram_is_answered_or_ignored(self, data: bytes, known: bool) -> None:
        udp = joined()
        udp.send(ALICE if known else CAROL, data)
        assert udp.send(BOB, PING)[-1] == PONG


class SessionTests(SynchronousTestCase):
    """cafe §7.2: the peer's address is its connection"""

    def test_the_first_frame_of_an_unknown_peer_must_be_a_handshake(self) -> None:
        udp = Udp()
        for first in (
            PING,
            PONG,
            DISCONNECT,
            wire.publish(1, b"x"),
            wire.subscribe(1),
            wire.frame(0x77),
        ):
            assert udp.send(CAROL, first + wire.hs_pub(1)) == [wire.error(0x01)]
        assert udp.broker.counters.connections == 0
        assert udp.broker.counters.refusals == {("cafe", "no-handshake"): 6}

    def test_header_errors_have_separate_codes(self) -> None:
        udp = Udp()
        faults = {
            b"\xca\xfe\x20\0\0\0\0": 0x05,
            b"GET / HTTP/1.1\r\n": 0x07,
            b"\xfe\xca\x01\x01\0\x10\0": 0x03,
            b"\xfe": 0x07,
            wire.hs_pub(1)[:-1]: 0x07,
            PING[:-1]: 0x07,
        }
        for data, code in faults.items():
            assert udp.send(CAROL, data) == [wire.error(code)]
        assert len(udp.protocol._clients) == 0
        # None of them was admitted, not even for a moment.
        assert udp.broker.counters.refusals == {("cafe", "no-handshake"): len(faults)}

    def test_a_failed_handshake_leaves_no_session_and_ends_the_datagram(self) -> None:
        udp = Udp(channels="1", allow_subscribe="x")
        for handshake, code in (
            (wire.hs_pub(2), 2),
            (wire.hs_sub(b"\x01"), 8),
            (wire.frame(0x01), 1),
        ):
            assert udp.send(CAROL, handshake + wire.hs_pub(1)) == [wire.ack(0, status=code)]
            assert udp.broker.counters.connections == 0
        assert udp.send(CAROL, wire.hs_pub(1)) == [wire.ack(1)]

    def test_a_closing_error_ends_the_session_and_the_datagram(self) -> None:
        faults = {
            wire.hs_pub(1): 0x01,
            wire.frame(0x20, b"x"): 0x07,
            b"\xca\xfe\x20\0\0\0\0": 0x05,
            b"GET / HTTP/1.1\r\n": 0x07,
            b"\xfe\xca\x10\x01\0\x10\0": 0x03,
        }
        for fault, code in faults.items():
            udp = joined()
            assert udp.send(ALICE, fault + wire.publish(1, b"ignored")) == [wire.error(code)]
            assert udp.take(BOB) == []
            assert udp.broker.counters.connections == 1
            assert len(udp.broker.sessions) == 1
            assert udp.send(ALICE, wire.hs_pub(1)) == [wire.ack(3)]

    def test_other_errors_do_not_end_the_session(self) -> None:
        udp = joined(rate_messages=1)
        assert udp.send(ALICE, wire.subscribe(1) + wire.frame(0x77) + PING) == [
            wire.error(0x08),
            wire.error(0x06),
            PONG,
        ]
        assert udp.send(ALICE, wire.publish(1, b"a", b"b", b"c")) == [wire.error(0x04)] * 2
        assert udp.send(BOB, wire.publish(1, b"x"))[-1] == wire.error(0x08)

    def test_subscriptions_change_as_on_tcp(self) -> None:
        udp = joined()
        udp.send(BOB, wire.subscribe(2) + wire.unsubscribe(1))
        udp.send(ALICE, wire.publish(1, b"no") + wire.publish(2, b"yes"))
        (datagram,) = udp.take(BOB)
        assert wire.frames(datagram)[0][1][9:] == b"yes"

    def test_disconnect_ends_the_session_without_a_reply(self) -> None:
        udp = joined()
        assert udp.send(BOB, DISCONNECT + PING) == []
        udp.send(ALICE, wire.publish(1, b"hi"))
        assert udp.take(BOB) == []
        assert udp.send(CAROL, wire.hs_sub(b"", wire.resume(b"bob", 2))) == [wire.ack(0, status=1)]

    def test_the_session_ends_after_5_minutes_without_a_datagram(self) -> None:
        udp = joined()
        udp.start()
        udp.advance(200)
        udp.send(ALICE, wire.publish(1, b"hi"))
        udp.take(BOB)
        udp.advance(110)
        assert udp.take(BOB) == [DISCONNECT]
        assert udp.broker.counters.connections == 1
        assert udp.broker.counters.refusals == {("cafe", "idle"): 1}
        assert udp.send(ALICE, PING) == [PONG]
        assert udp.send(BOB, wire.hs_sub(b"", wire.resume(b"bob", 2))) == [wire.ack(0, status=1)]

    def test_a_subscriber_on_loopback_may_be_silent(self) -> None:
        udp = Udp()
        udp.start()
        home, publisher = ("127.0.0.1", 4001), ("127.0.0.1", 4002)
        udp.join(home, wire.hs_sub(b"\x01"))
        udp.join(publisher, wire.hs_pub(1))
        udp.advance(310)
        assert udp.take(home) == []
        assert udp.take(publisher) == [DISCONNECT]
        udp.publisher().send(wire.publish(1, b"hi"))
        assert [wire.payloads(data) for data in udp.take(home)] == [[b"hi"]]

    def test_a_subscriber_on_loopback_ends_with_its_program(self) -> None:
        udp = Udp(udp_trusted="192.0.2.0/28")
        udp.start()
        open_ports = {4001, 4002}
        udp.protocol.ports = OpenPorts(lambda: succeed(frozenset(open_ports)))
        home, other, mapped = ("127.0.0.1", 4001), ("127.0.0.1", 4002), ("::ffff:127.0.0.1", 4003)
        for address in (home, other, mapped, ALICE, BOB):
            udp.join(address, wire.hs_sub(b"\x01", b"name"))
        open_ports.add(4003)
        udp.advance(100)
        assert udp.broker.counters.connections == 5
        open_ports -= {4002, 4003}
        udp.advance(20)
        # Its port was opened again.
        open_ports.add(4003)
        udp.advance(100)
        assert udp.broker.counters.connections == 4
        assert udp.take(other) == udp.take(home) == udp.take(ALICE) == []
        assert udp.broker.counters.refusals == {}
        # A new program has the port.
        open_ports.add(4002)
        udp.join(other, wire.hs_sub(b"\x01"))
        udp.advance(100)
        assert udp.broker.counters.connections == 5

    def test_a_subscriber_in_a_trusted_network_may_be_silent(self) -> None:
        udp = joined(udp_trusted="192.0.2.0/28, 2001:db8::/32")
        udp.start()
        mapped, sixth = ("::ffff:192.0.2.3", 1), ("2001:db8::1", 1)
        for address in (mapped, sixth, ("192.0.2.200", 1)):
            udp.join(address, wire.hs_sub(b"\x01"))
        udp.advance(310)
        assert udp.take(ALICE) == udp.take(("192.0.2.200", 1)) == [DISCONNECT]
        assert udp.take(BOB) == udp.take(mapped) == udp.take(sixth) == []

    def test_a_reload_changes_the_trusted_networks(self) -> None:
        udp = joined(udp_trusted="192.0.2.2")
        udp.start()
        udp.advance(310)
        assert udp.take(BOB) == []
        listener = udp.listeners["cafe"]
        listener.reconfigure({**listener.settings, "udp-trusted": ()})
        udp.advance(2)
        assert udp.take(BOB) == [DISCONNECT]

    def test_the_timeout_is_a_setting(self) -> None:
        for seconds, gone in ((20, [DISCONNECT]), (0, [])):
            udp = joined(udp_timeout=seconds)
            udp.start()
            udp.advance(400)
            assert udp.take(BOB) == gone

    def test_the_idle_timeout_sends_the_goodbye(self) -> None:
        udp = joined(idle_timeout=20)
        udp.start()
        udp.advance(25)
        assert udp.take(ALICE) == udp.take(BOB) == [DISCONNECT]
        assert udp.broker.counters.refusals == {("cafe", "idle"): 2}

    def test_a_session_moves_to_another_address_while_it_lives(self) -> None:
        udp = joined()
        assert udp.send(CAROL, wire.hs_sub(b"\x02", wire.resume(b"bob", 2))) == [wire.ack(2)]
        udp.clock.advance(GAP)
        udp.send(ALICE, wire.publish(1, b"one") + wire.publish(2, b"two"))
        assert udp.take(BOB) == []
        found = [payload for data in udp.take(CAROL) for _, payload in wire.frames(data)]
        assert sorted(payload[9:] for payload in found) == [b"one", b"two"]
        assert udp.send(BOB, PING) == [wire.error(0x01)]
        assert udp.broker.counters.connections == 2

    def test_a_handshake_within_a_session_is_refused(self) -> None:
        udp = joined()
        assert udp.send(BOB, wire.hs_sub(b"", wire.resume(b"bob", 2))) == [wire.error(0x01)]

    def test_a_stream_session_can_be_resumed_over_udp(self) -> None:
        udp = Udp()
        bob, alice = udp.subscriber(), udp.publisher()
        bob.stream.lose()
        alice.send(wire.publish(1, b"x" * 65_492, b"fits"))
        assert udp.send(CAROL, wire.hs_sub(b"", wire.resume(b"bob", 1))) == [wire.ack(1)]
        udp.clock.advance(GAP)
        assert [wire.payloads(data) for data in udp.take(CAROL)] == [[b"fits"]]

    def test_two_ports_of_a_host_are_two_peers(self) -> None:
        udp = joined()
        assert udp.send(CAROL, wire.hs_sub(b"\x01", b"bob")) == [wire.ack(3)]
        udp.clock.advance(GAP)
        udp.send(ALICE, wire.publish(1, b"hi"))
        assert len(udp.take(BOB)) == len(udp.take(CAROL)) == 1


class LimitTests(SynchronousTestCase):
    """Quotas, backpressure, closing"""

    def test_a_peer_over_quota_is_refused(self) -> None:
        udp = joined(max_connections=2)
        assert udp.send(CAROL, wire.hs_sub(b"\x01")) == [wire.error(0x04)]
        udp.send(ALICE, DISCONNECT)
        assert udp.send(CAROL, wire.hs_sub(b"\x01")) == [wire.ack(3)]

    def test_a_socket_for_both_versions_shows_ipv4_as_such(self) -> None:
        udp = joined(max_connections_per_address=1)
        mapped = f"::ffff:{ALICE[0]}", 4009
        ((opcode, _),) = wire.frames(udp.send(mapped, wire.hs_pub(1))[0])
        assert opcode == 0xFF
        assert udp.broker.counters.refusals == {("cafe", "limit-reached"): 1}
        udp = Udp()
        udp.join(mapped, wire.hs_pub(1))
        assert [client.peer for client in udp.protocol._clients.values()] == ["192.0.2.1:4009"]

    def test_the_quota_of_an_address_covers_a_network_of_ipv6(self) -> None:
        udp = Udp(max_connections_per_address=1)
        first, second = ("2001:db8::1", 4000), ("2001:db8::2", 4000)
        assert udp.send(first, wire.hs_pub(1)) != [wire.error(0x04)]
        assert [one.peer for one in udp.protocol._clients.values()] == ["[2001:db8::1]:4000"]
        assert udp.send(second, wire.hs_pub(1)) == [wire.error(0x04)]
        udp.send(first, DISCONNECT)
        assert udp.send(second, wire.hs_pub(1)) != [wire.error(0x04)]

    def test_the_quota_of_an_address_covers_udp_and_tcp(self) -> None:
        udp = joined(max_connections_per_address=1)
        assert udp.send(CAROL, wire.hs_sub(b"\x01")) == [wire.error(0x04)]
        assert udp.connect("cafe", BOB[0]).take() == wire.error(0x04)
        assert udp.broker.counters.refusals == {("cafe", "limit-reached"): 2}

    def test_datagrams_are_refused_where_a_stream_would_be_held(self) -> None:
        udp = joined(slow_consumer="pause")
        slow, fast = udp.subscriber(), udp.publisher()
        slow.stream.stop_reading()
        for _ in range(20):
            fast.send(wire.publish(1, b"." * 65_600))
        assert fast.stream.paused
        assert udp.send(ALICE, wire.publish(1, b"a", b"b")) == [wire.error(0x04)] * 2
        assert udp.send(ALICE, wire.publish(2, b"a")) == []
        slow.stream.read()
        assert udp.send(ALICE, wire.publish(1, b"a")) == []

    def test_datagrams_are_refused_while_the_backplane_is_slow(self) -> None:
        udp = joined()
        backplane = MemoryBackplane(MemoryEngine(), lambda call: udp.clock.callLater(0, call))
        Fanout(udp.broker, backplane)
        backplane.gate.close()
        assert udp.send(ALICE, wire.publish(1, b"a")) == [wire.error(0x04)]
        backplane.gate.open()
        assert udp.send(ALICE, wire.publish(1, b"b")) == []
        assert udp.take(BOB) == [wire.message(1, b"b", at=MOMENT)]

    def test_shutdown_sends_the_goodbye_and_closes_the_port(self) -> None:
        udp = joined()
        udp.start()
        udp.protocol.datagramReceived(wire.publish(1, b"last"), ALICE)
        stopped = udp.broker.stopService()
        self.successResultOf(stopped)
        assert udp.port.stopped
        assert udp.take(ALICE) == [DISCONNECT]
        assert udp.take(BOB) == [wire.message(1, b"last", at=MOMENT), DISCONNECT]
        assert not udp.broker.clients
        assert udp.listeners["cafe"].quota.open == 0

    def test_messages_held_in_the_gap_precede_the_goodbye(self) -> None:
        udp = Udp()
        udp.join(ALICE, wire.hs_pub(1))
        udp.send(BOB, wire.hs_sub(b"\x01"))
        udp.send(ALICE, wire.publish(1, b"held"))
        udp.broker.stopService()
        held, goodbye = udp.take(BOB)
        assert (wire.payloads(held), goodbye) == ([b"held"], DISCONNECT)

    def test_memory_is_released(self) -> None:
        udp = Udp()
        start = udp.broker.memory.used
        ports: Callable[[], int] = count(5000).__next__
        for _ in range(50):
            udp.send(("192.0.2.9", ports()), wire.hs_sub(bytes(range(256))[:255], b"x"))
        assert udp.broker.memory.used > start
        udp.start()
        udp.advance(302)
        assert udp.broker.memory.used == start
        assert not udp.protocol._clients


# Two gaps after the start.
MOMENT = (1_700_000_000_040).to_bytes(8, "little")


class OpenPortTests(SynchronousTestCase):
    """The UDP ports of this computer"""

    def test_those_of_sockets_are_found(self) -> None:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family, socket.SOCK_DGRAM) as one:
                one.bind((host, 0))
                port = one.getsockname()[1]
                assert port in (open_ports() or ())
                one.connect((host, 9))
                assert port in (open_ports() or ())
            found = open_ports()
            assert found is not None
            assert port not in found

    def test_a_system_may_not_show_them(self) -> None:
        missing = Path(scratch(self), "udp")
        assert open_ports((missing,)) is None
        missing.write_text("another format\nof lines")
        assert open_ports((missing,)) is None

    def test_one_that_is_missing_once_is_not_closed(self) -> None:
        lists = iter([{1, 2}, {1}, {1, 2}, {1}, {1}, None, {1}])

        def read() -> Deferred[frozenset[int] | None]:
            found = next(lists)
            return succeed(None if found is None else frozenset(found))

        ports = OpenPorts(read)
        found = []
        for now in range(7):
            ports.look(100.0 + now * 30)
            ports.look(100.0 + now * 30 + 29)
            found.append(ports.is_closed(2, 90.0))
        assert found == [False, False, False, False, True, False, False]
        assert not ports.is_closed(2, 400.0)

    def test_the_reactor_does_not_wait_for_them(self) -> None:
        reads: list[Deferred[frozenset[int] | None]] = []

        def read() -> Deferred[frozenset[int] | None]:
            reads.append(Deferred())
            return reads[-1]

        ports = OpenPorts(read)
        for now in (100.0, 130.0, 160.0):
            ports.look(now)
        assert len(reads) == 1
        reads[0].callback(frozenset({1}))
        ports.look(165.0)
        reads[1].callback(frozenset({1}))
        # The ports were read for the first time at 100 and not at 160.
        assert ports.is_closed(2, 99.0)
        assert not ports.is_closed(2, 101.0)

    def test_they_are_unknown_without_a_thread(self) -> None:
        outcomes: list[Deferred[frozenset[int] | None]] = [
            succeed(frozenset({1})), fail(RuntimeError("no thread")), succeed(frozenset({1})),
        ]  # fmt: skip
        results = iter(outcomes)
        ports = OpenPorts(lambda: next(results))
        for now in (100.0, 130.0, 160.0):
            ports.look(now)
            assert not ports.is_closed(2, 90.0)
        assert next(results, None) is None

    def test_they_are_read_in_a_thread(self) -> None:
        threads: list[object] = []

        class Pool:
            def callInThreadWithCallback(
                self, done: Callable[[bool, object], None], call: Callable[[], object]
            ) -> None:
                threads.append(call)
                done(True, call())

        reactor = Clock()
        reactor.getThreadPool = Pool  # type: ignore[attr-defined]
        reactor.callFromThread = lambda call, *given: call(*given)  # type: ignore[attr-defined]
        self.successResultOf(read_in_thread(reactor)())
        assert threads == [open_ports]
