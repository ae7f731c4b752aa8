"""cafe sessions over streams: the window, takeover and replay (cafe §4.6)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.unit import cafe_wire as wire
from tests.unit.cafe_wire import GAP, Cafe
from tests.unit.streams import Client


class ResumptionTests(SynchronousTestCase):
    """cafe §4.6 in time"""

    def resumed(self, cafe: Cafe, name: bytes, session: int, channels: bytes = b"") -> Client:
        client = cafe.connect("cafe")
        client.send(wire.hs_sub(channels, wire.resume(name, session)))
        return client

    def lose_unread(self, alice: Client, bob: Client) -> None:
        """Let ``bob`` stop reading, be sent a message and queue three, and lose the connection."""
        bob.stream.stop_reading()
        alice.send(wire.publish(1, b"written" + b"." * 70_000))
        for n in range(3):
            alice.send(wire.publish(1, b"unwritten %d" % n))
        bob.stream.lose()

    def test_the_window_is_60_seconds_from_the_end_of_the_connection(self) -> None:
        for seconds, answer in ((59.9, wire.ack(1)), (60.0, wire.ack(0, status=1))):
            cafe = Cafe()
            bob = cafe.subscriber()
            cafe.clock.advance(100)
            bob.stream.lose()
            cafe.clock.advance(seconds)
            assert self.resumed(cafe, b"bob", 1).take() == answer

    def test_without_a_window_nothing_can_be_resumed_or_taken_over(self) -> None:
        cafe = Cafe(top={"resume-window": 0})
        bob, carol = cafe.subscriber(), cafe.subscriber(name=b"carol")
        bob.stream.lose()
        assert self.resumed(cafe, b"bob", 1).take() == wire.ack(0, status=1)
        assert self.resumed(cafe, b"carol", 2).take() == wire.ack(0, status=1)
        assert not carol.closed
        assert len(cafe.broker.sessions) == 1

    def test_at_the_bound_of_memory_no_channel_can_be_added(self) -> None:
        cafe = Cafe()
        cafe.subscriber(b"\x01\x02").stream.lose()
        memory = cafe.broker.memory
        for channels, answer in (
            (b"\x03", wire.ack(0, status=4)),
            (b"\x01\x03", wire.ack(0, status=4)),
            (b"\x02\x01", wire.ack(1)),
            (b"", wire.ack(1)),
        ):
            again = cafe.connect("cafe")
            memory.limit = memory.used
            again.send(wire.hs_sub(channels, wire.resume(b"bob", 1)))
            assert again.take() == answer, channels
            memory.limit = 0

    def test_missed_messages_follow_the_gap_in_order_before_live_ones(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber(b"\x01\x02")
        alice.send(wire.publish(1, b"seen"))
        bob.stream.lose()
        alice.send(
            wire.publish(1, b"a")
            + wire.publish(2, b"b")
            + wire.publish(3, b"other")
            + wire.publish(1, b"c")
        )
        again = self.resumed(cafe, b"bob", 2)
        alice.send(wire.publish(1, b"live") + wire.publish(3, b"other"))
        assert again.take() == wire.ack(2)
        cafe.clock.advance(GAP)
        assert wire.payloads(again.take()) == [b"a", b"b", b"c", b"live"]

    def test_a_long_history_is_replayed_in_pages_under_traffic(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.lose()
        missed = [b"%05d" % n + b"." * 10_000 for n in range(120)]
        for payload in missed:
            alice.send(wire.publish(1, payload))
        again = self.resumed(cafe, b"bob", 2)
        again.take()
        again.stream.stop_reading()
        cafe.clock.advance(GAP)
        assert len(again.stream.buffered) < 600_000
        live = [b"live %d" % n for n in range(3)]
        for payload in live:
            alice.send(wire.publish(1, payload))
        for _ in range(20):
            again.stream.read(on=False)
            cafe.pump(3)
        assert wire.payloads(again.take()) == missed + live
        assert cafe.broker.counters.delivered == 123
        assert cafe.broker.counters.dropped == 0

    def test_queued_messages_are_sent_again_and_written_ones_are_not(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber()
        self.lose_unread(alice, bob)
        again = self.resumed(cafe, b"bob", 2)
        again.take()
        cafe.clock.advance(GAP)
        assert wire.payloads(again.take()) == [b"unwritten 0", b"unwritten 1", b"unwritten 2"]
        # The client had not taken the output.
        assert cafe.broker.counters.dropped == 1
        assert cafe.broker.counters.delivered == 3

    def test_queued_messages_are_dropped_when_the_session_expires(self) -> None:
        for ends in ("expiry", "stop"):
            cafe = Cafe()
            cafe.start()
            alice, bob = cafe.publisher(), cafe.subscriber()
            self.lose_unread(alice, bob)
            counters = cafe.broker.counters
            assert (counters.delivered, counters.dropped) == (0, 1)
            if ends == "expiry":
                cafe.advance(62)
            else:
                cafe.broker.stopService()
            assert (counters.delivered, counters.dropped) == (0, 4), ends

    def test_written_messages_of_one_channel_are_not_sent_again_with_another(self) -> None:
        """cafe §4.6: "Messages already written to the old connection are not sent again"."""
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber(b"\x01\x02")
        bob.stream.stop_reading()
        alice.send(wire.publish(1, b"fill" + b"." * 70_000))
        big = b"." * 150_000
        alice.send(b"".join(wire.publish(n % 2 + 1, b"%d" % n + big) for n in range(4)))
        bob.stream.read(on=False)
        before = [p[:1] for p in wire.payloads(bob.take() + bytes(bob.stream.buffered))]
        bob.stream.lose()
        again = self.resumed(cafe, b"bob", 2)
        again.take()
        cafe.clock.advance(GAP)
        cafe.pump()
        after = [p[:1] for p in wire.payloads(again.take())]
        assert sorted(before + after) == [b"0", b"1", b"2", b"3", b"f"]

    def test_a_subscription_has_no_history_after_resumption(self) -> None:
        """cafe §5.3: "A subscription starts with the next message published"."""
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber(b"\x01")
        bob.stream.stop_reading()
        alice.send(wire.publish(1, b"fill" + b"." * 70_000))
        alice.send(wire.publish(1, b"unread"))
        alice.send(wire.publish(2, b"before the subscription"))
        bob.send(wire.subscribe(2))
        alice.send(wire.publish(2, b"after it"))
        bob.stream.lose()
        again = self.resumed(cafe, b"bob", 2)
        again.take()
        cafe.clock.advance(GAP)
        assert wire.payloads(again.take()) == [b"unread", b"after it"]

    def test_an_interrupted_replay_continues(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber(b"\x01")
        bob.stream.lose()
        missed = [b"%05d" % n + b"." * 10_000 for n in range(100)]
        for payload in missed:
            alice.send(wire.publish(1, payload))
        got: list[bytes] = []
        for _ in range(10):
            client = self.resumed(cafe, b"bob", 2)
            assert client.take() == wire.ack(2)
            client.stream.stop_reading()
            cafe.clock.advance(GAP)
            cafe.pump(3)
            got += wire.payloads(bytes(client.stream.buffered))
            client.stream.lose()
        assert got == missed

    def test_expired_messages_are_counted_as_dropped(self) -> None:
        cafe = Cafe(top={"history": "10"})
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.lose()
        for n in range(25):
            alice.send(wire.publish(1, b"%d" % n))
        again = self.resumed(cafe, b"bob", 2)
        again.take()
        cafe.clock.advance(GAP)
        assert wire.payloads(again.take()) == [b"%d" % n for n in range(15, 25)]
        assert [(key[2], count) for key, count in cafe.broker.counters.drops.items()] == [
            ("expired", 15)
        ]

    def test_an_unsubscription_during_the_replay_takes_effect(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber(b"\x01\x02")
        bob.stream.lose()
        for n in range(60):
            alice.send(wire.publish(n % 2 + 1, b"%d" % n + b"." * 10_000))
        again = self.resumed(cafe, b"bob", 2)
        again.take()
        again.stream.stop_reading()
        cafe.clock.advance(GAP)
        again.send(wire.unsubscribe(2) + wire.subscribe(1) + wire.subscribe(3))
        again.stream.read()
        cafe.pump()
        alice.send(wire.publish(1, b"1") + wire.publish(2, b"2") + wire.publish(3, b"3"))
        found = [(p[0], p[9:].rstrip(b".")) for _, p in wire.frames(again.take())]
        ones = [text for channel, text in found if channel == 1]
        assert ones == [b"%d" % n for n in range(0, 60, 2)] + [b"1"]
        assert found[-2:] == [(1, b"1"), (3, b"3")]

    def test_the_old_connection_is_closed_and_its_input_ignored(self) -> None:
        cafe = Cafe()
        old = cafe.publisher()
        new = cafe.connect("cafe")
        new.send(wire.hs_pub(1, wire.resume(b"alice", 1)))
        assert new.take() == wire.ack(1)
        assert old.stream.aborted
        old.send(wire.publish(1, b"too late"))
        assert cafe.broker.counters.published == 0
        assert len(cafe.broker.sessions) == 1
        new.send(wire.publish(1, b"hi"))
        assert cafe.broker.counters.published == 1

    def test_held_and_blocked_connections_are_taken_over_too(self) -> None:
        cafe = Cafe(slow_consumer="pause")
        alice, bob = cafe.publisher(), cafe.subscriber()
        bob.stream.stop_reading()
        for n in range(30):
            alice.send(wire.publish(1, b"%02d" % n + b"." * 70_000))
        assert bool(alice.stream.paused)
        new = self.resumed(cafe, b"bob", 2)
        new.take()
        cafe.clock.advance(GAP)
        cafe.pump()
        assert not alice.stream.paused
        count = len(wire.payloads(new.take()))
        assert count + 1 == cafe.broker.counters.published == 30
        assert cafe.broker.memory.holders == set()
