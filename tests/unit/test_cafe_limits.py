"""Limits of cafe: quotas, rates, memory, slow subscribers, idle clients, shutdown."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.sessions import SESSION_BYTES
from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.broker.topic_space.topic_registry import TOPIC_BYTES
from tests.unit import cafe_wire as wire
from tests.unit.cafe_wire import DISCONNECT, GAP, PING, PONG, Cafe


class QuotaTests(SynchronousTestCase):
    """cafe §5.5"""

    def test_a_handshake_over_the_session_limit_fails_with_04(self) -> None:
        cafe = Cafe(top={"max-sessions": 2})
        cafe.publisher()
        cafe.subscriber()
        third = cafe.connect("cafe")
        third.send(wire.hs_sub(b"\x01") + PING)
        assert third.take() == bytes.fromhex("fe ca 03 09 00 00 00 04 00 00 00 00 00 00 00 00")
        assert third.closed

    def test_a_resumable_session_makes_room(self) -> None:
        cafe = Cafe(top={"max-sessions": 2})
        alice = cafe.publisher()
        cafe.subscriber()
        alice.stream.lose()
        third = cafe.connect("cafe")
        third.send(wire.hs_pub(1))
        assert third.take() == wire.ack(3)

    def test_connections_of_an_address_over_quota_are_refused_at_accept(self) -> None:
        cafe = Cafe(max_connections_per_address=1)
        cafe.connect("cafe", "192.0.2.1")
        second = cafe.connect("cafe", "192.0.2.1")
        assert second.take() == wire.error(0x04)
        assert second.closed
        second.send(PING)
        assert second.take() == b""
        assert cafe.connect("cafe", "192.0.2.2").take() == b""

    def test_memory_at_its_bound_refuses_connections_and_sessions(self) -> None:
        one = CONNECTION_BYTES + SESSION_BYTES
        top = {"history": 0, "max-memory": TOPIC_BYTES + one + CONNECTION_BYTES}
        cafe = Cafe(top, channels="1")
        cafe.publisher()
        second = cafe.connect("cafe")
        second.send(wire.hs_sub(b"\x01"))
        assert second.take() == wire.ack(0, status=4)
        second.stream.lose()
        cafe.connect("cafe")
        assert cafe.connect("cafe").take() == wire.error(0x04)


class RateTests(SynchronousTestCase):
    """Each PUBLISH over the rate gets its own ERROR 0x04 (cafe §5.1)"""

    def test_messages_of_a_batch_are_refused_one_by_one(self) -> None:
        cafe = Cafe(rate_messages=2)
        alice, bob = cafe.publisher(), cafe.subscriber()
        alice.send(wire.publish(1, *[b"%d" % n for n in range(5)]) + PING)
        assert alice.take() == wire.error(0x04) * 3 + PONG
        cafe.clock.advance(1)
        alice.send(wire.publish(1, b"5", b"6", b"7"))
        assert alice.take() == wire.error(0x04)
        assert wire.payloads(bob.take()) == [b"0", b"1", b"5", b"6"]
        assert cafe.broker.counters.published == 4
        assert cafe.broker.counters.refusals == {("cafe", "rate-limited"): 4}

    def test_bytes_are_limited_too(self) -> None:
        cafe = Cafe(rate_bytes=100)
        alice, bob = cafe.publisher(), cafe.subscriber()
        alice.send(wire.publish(1, b"a" * 60, b"b" * 60, b"c", b"d"))
        assert alice.take() == wire.error(0x04) * 2
        assert [p[:1] for p in wire.payloads(bob.take())] == [b"a", b"b"]

    def test_the_connections_of_a_listener_share_its_rate(self) -> None:
        cafe = Cafe(listener_rate_messages=3)
        alice, carol = cafe.publisher(), cafe.publisher()
        alice.send(wire.publish(1, b"a", b"b"))
        carol.send(wire.publish(1, b"c", b"d"))
        alice.send(wire.publish(1, b"e"))
        assert (alice.take(), carol.take()) == (wire.error(0x04), wire.error(0x04))

    def test_permission_and_channel_are_checked_before_the_rate(self) -> None:
        cafe = Cafe(rate_messages=1, channels="1-2", allow_publish="cafe/1")
        alice = cafe.publisher()
        long = wire.frame(0x10, b"\x02" + b"x" * 1_048_568)
        alice.send(
            wire.publish(1, b"x", b"x") + wire.publish(2, b"x", b"x") + wire.publish(3, b"x") + long
        )
        answers = [payload[0] for _, payload in wire.frames(alice.take())]
        assert answers == [0x04, 0x08, 0x08, 0x02, 0x03]


class BackpressureTests(SynchronousTestCase):
    """cafe §5.3: subscribers that do not read"""

    def test_a_publisher_is_held_for_a_slow_subscriber_and_released(self) -> None:
        cafe = Cafe(slow_consumer="pause")
        alice, other, bob = cafe.publisher(), cafe.publisher(2), cafe.subscriber()
        bob.stream.stop_reading()
        sent = [b"%02d" % n + b"." * 65_000 for n in range(40)]
        for payload in sent:
            alice.send(wire.publish(1, payload))
            other.send(wire.publish(2, b"nobody listens"))
        assert bool(alice.stream.paused)
        assert not other.stream.paused
        assert 1_000_000 < cafe.broker.memory.used < 1_500_000 + 300 * TOPIC_BYTES
        before = cafe.broker.counters.published
        cafe.pump()
        assert cafe.broker.counters.published == before
        bob.stream.read()
        cafe.pump()
        assert not alice.stream.paused
        assert wire.payloads(bob.take()) == sent
        assert not cafe.broker.memory.holders
        assert cafe.broker.counters.dropped == 0

    def test_a_reading_subscriber_gets_everything_meanwhile(self) -> None:
        cafe = Cafe(slow_consumer="pause")
        alice, bob, carol = cafe.publisher(), cafe.subscriber(), cafe.subscriber()
        bob.stream.stop_reading()
        for n in range(40):
            alice.send(wire.publish(1, b"%02d" % n + b"." * 65_000))
        assert len(wire.payloads(carol.take())) == cafe.broker.counters.published > 10

    def test_after_30_seconds_the_slow_subscriber_is_disconnected(self) -> None:
        cafe = Cafe(slow_consumer="pause")
        cafe.start()
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.stop_reading()
        for n in range(30):
            alice.send(wire.publish(1, b"%02d" % n + b"." * 65_000))
        assert bool(alice.stream.paused)
        cafe.advance(29)
        assert not bob.closed
        cafe.advance(3)
        assert bob.stream.aborted
        assert not alice.stream.paused
        assert cafe.broker.counters.published == 30

    def test_over_the_limit_in_bytes_it_is_disconnected_at_once(self) -> None:
        cafe = Cafe(slow_consumer="disconnect", slow_bytes="200K")
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.stop_reading()
        for _ in range(3):
            alice.send(wire.publish(1, b"." * 65_600))
        assert not bob.closed
        alice.send(wire.publish(1, b"." * 65_600))
        assert bob.stream.aborted
        assert not alice.stream.paused

    def test_with_drop_missed_messages_are_counted(self) -> None:
        cafe = Cafe(slow_consumer="drop", slow_bytes="200K")
        cafe.start()
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.stop_reading()
        for n in range(10):
            alice.send(wire.publish(1, b"%d" % n + b"." * 65_600))
        cafe.advance(100)
        bob.stream.read()
        alice.send(wire.publish(1, b"later"))
        got = wire.payloads(bob.take())
        counters = cafe.broker.counters
        assert [p[:1] for p in got[:-1]] == [b"%d" % n for n in range(len(got) - 1)]
        assert got[-1] == b"later"
        assert counters.delivered == len(got)
        assert dict(counters.drops) == {
            (f"bob@{bob.protocol.peer}", "cafe/1", "slow-consumer"): 11 - len(got)
        }

    def test_a_flood_of_pings_without_reading_is_held(self) -> None:
        cafe = Cafe()
        for client in (cafe.publisher(), cafe.subscriber()):
            client.stream.stop_reading()
            for _ in range(40):
                client.send(PING * 1000)
            assert client.stream.paused
            assert len(client.stream.buffered) < 100_000
            client.stream.read()
            cafe.pump(300)
            assert client.take() == PONG * 40_000

    def test_a_subscriber_that_does_not_read_can_still_unsubscribe(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.stop_reading()
        alice.send(wire.publish(1, b"." * 70_000))
        bob.send(wire.subscribe(2))
        assert not bob.stream.paused
        bob.send(PING)
        assert bob.stream.paused


class MemoryBoundTests(SynchronousTestCase):
    """The bound on the memory of the process"""

    def test_publishers_wait_at_the_bound_until_memory_is_released(self) -> None:
        top = {"history": 0, "max-memory": 300_000}
        cafe = Cafe(top, channels="1-2", slow_consumer="disconnect")
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.stop_reading()
        for _ in range(8):
            alice.send(wire.publish(1, b"." * 60_000))
        assert bool(alice.stream.paused)
        assert cafe.broker.memory.used < 450_000
        bob.stream.read()
        cafe.pump()
        assert not alice.stream.paused
        assert len(wire.payloads(bob.take())) == 8

    def test_the_largest_holder_is_evicted_after_memory_seconds(self) -> None:
        top = {"history": 0, "max-memory": 300_000, "memory-seconds": 5}
        cafe = Cafe(top, channels="1-2", slow_consumer="drop")
        cafe.start()
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.stop_reading()
        for _ in range(8):
            alice.send(wire.publish(1, b"." * 60_000))
        cafe.advance(4)
        assert not bob.closed
        cafe.advance(4)
        assert bob.stream.aborted
        assert not alice.stream.paused


class EndTests(SynchronousTestCase):
    """cafe §4.5, §4.7: shutdown and idle clients"""

    def test_no_timer_is_left_of_a_client_that_leaves_at_once(self) -> None:
        cafe = Cafe()
        client = cafe.connect("cafe")
        client.send(wire.hs_sub(b"\x01", b"bob"))
        assert cafe.clock.getDelayedCalls()
        client.stream.lose()
        assert not cafe.clock.getDelayedCalls()

    def test_shutdown_sends_disconnect_after_queued_messages(self) -> None:
        cafe = Cafe()
        cafe.start()
        alice, bob = cafe.publisher(), cafe.subscriber()
        late, new = cafe.connect("cafe"), cafe.connect("cafe")
        late.send(wire.hs_sub(b"\x01"))
        bob.stream.stop_reading()
        alice.stream.feed(wire.publish(1, b"." * 70_000, b"last"))
        stopped = cafe.broker.stopService()
        assert alice.take() == new.take() == DISCONNECT
        assert late.take()[-len(DISCONNECT) - 4 :] == b"last" + DISCONNECT
        assert not bob.closed
        bob.stream.read()
        assert bob.take()[-len(DISCONNECT) - 4 :] == b"last" + DISCONNECT
        alice.stream.feed(wire.publish(1, b"too late"))
        assert cafe.broker.counters.published == 2
        for client in (alice, bob, late, new):
            assert client.closed
            self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
            client.stream.lose(clean=True)
        self.successResultOf(stopped)

    def test_a_client_that_never_reads_is_aborted_at_the_deadline(self) -> None:
        cafe = Cafe(top={"stop-timeout": 3})
        cafe.start()
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.stop_reading()
        alice.send(wire.publish(1, b"." * 70_000) + wire.publish(2, b"."))
        stopped = cafe.broker.stopService()
        alice.stream.lose()
        cafe.advance(2.5)
        self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
        cafe.advance(1)
        self.successResultOf(stopped)
        assert bob.stream.aborted

    def test_an_idle_client_gets_disconnect(self) -> None:
        cafe = Cafe(idle_timeout=10, handshake_seconds=0)
        cafe.start()
        alice, bob, new = cafe.publisher(), cafe.subscriber(), cafe.connect("cafe")
        for _ in range(4):
            cafe.advance(5)
            bob.send(PING)
        assert alice.take() == new.take() == DISCONNECT
        assert (alice.closed, bob.closed, new.closed) == (True, False, True)
        assert cafe.broker.counters.refusals == {("cafe", "idle"): 2}


class CounterTests(SynchronousTestCase):
    """Counters"""

    def test_published_delivered_refused_and_connections(self) -> None:
        cafe = Cafe(channels="1-2")
        alice = cafe.publisher()
        bob, carol = cafe.subscriber(), cafe.subscriber(b"\x01\x02")
        alice.send(wire.publish(1, b"a", b"bc") + wire.publish(2, b"def") + wire.publish(3, b"no"))
        bob.send(wire.publish(1, b"no") + wire.frame(0x55))
        counters = cafe.broker.counters
        assert (counters.published, counters.published_bytes) == (3, 6)
        assert counters.delivered == 5
        assert counters.refusals == {
            ("cafe", "topic-not-found"): 1,
            ("cafe", "not-a-publisher"): 1,
            ("cafe", "invalid-opcode"): 1,
        }
        assert counters.connections == 3
        carol.send(DISCONNECT)
        carol.stream.lose(clean=True)
        assert counters.connections == 2
        assert counters.dropped == 0

    def test_closing_errors_are_counted_by_reason(self) -> None:
        cafe = Cafe(channels="1")
        faults = {
            b"\xca\xfe\x01\0\0\0\0": "protocol-version-mismatch",
            b"GET / HTTP": "malformed-message",
            wire.frame(0x10)[:3] + b"\x01\0\x10\0": "message-too-large",
            PONG: "no-handshake",
            wire.hs_pub(1) + wire.hs_pub(1): "second-handshake",
            wire.frame(0x01): "malformed-handshake",
            wire.hs_sub(b"\x02"): "topic-not-found",
            wire.hs_sub(b"", b";resume="): "session-unknown",
        }
        for data, reason in faults.items():
            client = cafe.connect("cafe")
            client.send(data)
            assert client.closed
            assert cafe.broker.counters.refusals[("cafe", reason)] == 1
        assert cafe.broker.counters.refused == len(faults)

    def test_messages_held_in_the_gap_are_counted_when_they_are_dropped(self) -> None:
        cafe = Cafe(top={"resume-window": 0})
        alice, bob = cafe.publisher(), cafe.connect("cafe")
        bob.send(wire.hs_sub(b"\x01"))
        alice.send(wire.publish(1, b"one", b"two"))
        assert cafe.broker.counters.delivered == 2
        bob.stream.lose()
        assert cafe.broker.counters.delivered == 0
        assert list(cafe.broker.counters.drops.values()) == [2]
        cafe.clock.advance(GAP)
        assert bob.take() == wire.ack(2)
        assert wire.message(1, b"one") not in bytes(bob.stream.buffered)
