"""Outbox: readiness, sizes of writes, shutting, memory; see test_slow_consumers for policies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pubsub.broker.delivery.slow_policy import DISCONNECT, DROP, PAUSE, SlowPolicy
from pubsub.broker.memory_budget import SUBSCRIBERS
from pubsub.broker.routing.audience import WRITE_BYTES
from pubsub.broker.topic_space.topics import Topic
from tests.unit.fakes import Held, Lines, batch_of
from tests.unit.outbox_case import KIB, OutboxCase


class ReadinessTests(OutboxCase):
    """pause, resume, hold, release, send, when_drained"""

    def test_a_ready_transport_gets_everything_at_the_end_of_the_tick(self) -> None:
        bob = self.subscriber()
        self.publish(b"a", b"b")
        self.publish(b"c")
        assert bob.writes == [b"a\nb\n", b"c\n"]

    def test_a_paused_outbox_queues_and_resumes_in_order_with_one_write(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.pause()
        bob.outbox.pause()
        for payload in (b"a", b"b", b"c"):
            self.publish(payload)
        assert bob.writes == []
        assert bob.outbox.queued == 6
        bob.outbox.resume()
        assert bob.writes == [b"a\nb\nc\n"]
        assert bob.outbox.queued == 0

    def test_a_held_outbox_queues_until_it_is_released(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.hold()
        self.publish(b"a")
        self.publish(b"b")
        assert bob.writes == []
        bob.outbox.release()
        assert bob.writes == [b"a\nb\n"]

    def test_hold_and_pause_must_both_end(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.hold()
        bob.outbox.pause()
        self.publish(b"a")
        bob.outbox.release()
        assert bob.writes == []
        bob.outbox.hold()
        bob.outbox.resume()
        assert bob.writes == []
        bob.outbox.release()
        assert bob.writes == [b"a\n"]

    def test_a_backlog_is_sent_in_portions_as_the_transport_drains(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.pause()
        payloads = [bytes([n]) * (100 * KIB) for n in range(10)]
        for payload in payloads:
            self.publish(payload)
        for turn in range(1, 5):
            bob.drain(room=1)
            assert len(bob.writes) == turn
        assert [len(data) for data in bob.writes[:3]] == [3 * (100 * KIB + 1)] * 3
        assert WRITE_BYTES <= len(bob.writes[0]) < WRITE_BYTES + 100 * KIB
        assert bob.data == b"".join(payload + b"\n" for payload in payloads)

    def test_a_ready_transport_gets_as_much_of_a_backlog_as_it_takes(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.pause()
        for _ in range(10):
            self.publish(b"x" * (100 * KIB))
        bob.drain(room=2)
        assert len(bob.writes) == 2
        assert bob.outbox.queued == 4 * (100 * KIB + 1)

    def test_sent_frames_overtake_nothing(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.deliver(b"a", 1, self.topic, 0)
        bob.outbox.deliver_now(b"b", 1, self.topic, 1)
        self.bench.router.flush()
        bob.outbox.enqueue(b"c", 1, self.topic, 2)
        bob.outbox.deliver_now(b"d", 1, self.topic, 3)
        bob.outbox.flush()
        assert bob.writes == [b"ab", b"cd"]
        bob.outbox.deliver_now(b"e", 1, self.topic, 4)
        assert bob.writes == [b"ab", b"cd", b"e"], "nothing is queued: it is written at once"

    def test_nothing_is_sent_after_the_end(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.shut("left")
        bob.outbox.deliver_now(b"a", 1, self.topic, 0)
        assert bob.writes == []
        assert self.drops() == {("bob", "t", "disconnected"): 1}

    def test_control_frames_follow_the_deliveries_before_them(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.deliver(b"news", 1, self.topic, 0)
        bob.outbox.send(b"pong")
        assert bob.writes == [b"news", b"pong"]
        self.bench.router.flush()
        assert bob.writes == [b"news", b"pong"]

    def test_control_frames_do_not_wait_behind_a_backlog(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"a")
        bob.outbox.send(b"pong")
        assert bob.writes == [b"pong"]
        bob.outbox.resume()
        assert bob.writes == [b"pong", b"a\n"]

    def test_when_drained_calls_at_once_without_a_backlog(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        calls: list[str] = []
        bob.outbox.when_drained(lambda: calls.append("drained"))
        assert calls == ["drained"]

    def test_when_drained_waits_for_the_queue_and_the_transport(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        calls: list[str] = []
        bob.outbox.hold()
        self.publish(b"a")
        bob.room = 1
        bob.outbox.when_drained(lambda: calls.append("drained"))
        bob.outbox.release()
        assert bob.writes == [b"a\n"]
        assert calls == []
        bob.drain()
        bob.drain()
        assert calls == ["drained"]

    def test_several_calls_can_wait_for_the_same_drain(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        calls: list[str] = []
        bob.outbox.pause()
        bob.outbox.when_drained(lambda: calls.append("catch-up"))
        bob.outbox.when_drained(lambda: calls.append("stop"))
        bob.drain()
        assert calls == ["catch-up", "stop"]

    def test_a_call_that_fills_the_transport_again_delays_the_next(self) -> None:
        bob = self.subscriber()
        outbox = bob.outbox
        assert outbox is not None
        calls: list[str] = []

        def fill() -> None:
            calls.append("fill")
            outbox.pause()

        outbox.pause()
        outbox.when_drained(fill)
        outbox.when_drained(lambda: calls.append("last"))
        bob.drain()
        assert calls == ["fill"], "the transport is full again"
        bob.drain()
        assert calls == ["fill", "last"]


class ShutTests(OutboxCase):
    """shut: its counts and result, and the publishers that it releases"""

    def test_without_queued_messages_there_is_no_first_offset(self) -> None:
        bob = self.subscriber()
        self.publish(b"a")
        assert bob.outbox is not None
        assert bob.outbox.shut("disconnected") == {}
        assert self.drops() == {}
        assert self.bench.counters.delivered == 1

    def test_it_counts_queued_messages_and_returns_their_first_offset(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        self.publish(b"a", b"b")
        bob.outbox.pause()
        self.publish(b"c", b"d", b"e")
        self.publish(b"f")
        assert bob.outbox.shut("disconnected") == {self.topic: 2}
        assert self.drops() == {("bob", "t", "disconnected"): 4}
        assert self.bench.counters.delivered == 2

    def test_without_a_reason_no_drop_is_counted(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"a")
        assert bob.outbox.shut(None) == {self.topic: 0}
        assert self.drops() == {}

    def test_messages_of_the_present_tick_count(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        self.bench.router.route(self.topic, batch_of([b"a"], offset=7))
        assert bob.outbox.shut("disconnected") == {self.topic: 7}
        self.bench.turn()
        assert bob.writes == []
        assert self.drops() == {("bob", "t", "disconnected"): 1}
        assert self.bench.counters.delivered == 0

    def test_the_first_offset_is_the_smallest(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.pause()
        # A cursor queues messages that are older than those delivered live meanwhile.
        bob.outbox.deliver(b"live", 1, self.topic, 100)
        bob.outbox.deliver(b"replayed", 1, self.topic, 3)
        assert bob.outbox.shut(None) == {self.topic: 3}

    def test_each_topic_has_its_own_first_offset(self) -> None:
        bob, other = self.subscriber(), Topic("other")
        assert bob.outbox is not None
        self.bench.router.subscribe(bob.outbox, other, Lines())
        bob.outbox.pause()
        self.publish(b"a", b"b")
        self.publish(b"c", topic=other)
        self.publish(b"d")
        assert bob.outbox.shut(None) == {self.topic: 0, other: 2}

    def test_waiting_calls_are_made_at_the_end_of_the_tick(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        calls: list[str] = []
        bob.outbox.pause()
        bob.outbox.when_drained(lambda: calls.append("drained"))
        bob.outbox.shut("disconnected")
        assert calls == []
        self.bench.turn()
        assert calls == ["drained"]

    def test_it_releases_publishers_and_subscriptions(self) -> None:
        bob, publisher = self.subscriber(SlowPolicy(PAUSE, KIB, 30)), Held()
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"x" * 512)
        self.topic.wait(publisher)
        bob.outbox.shut("disconnected")
        assert publisher.reasons == set()
        assert not self.topic.groups
        assert not bob.outbox.subscriptions
        assert not self.bench.router.slow

    def test_a_closed_outbox_accepts_nothing_after_its_transport_drains(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.pause()
        bob.outbox.shut("disconnected")
        bob.outbox.resume()
        bob.outbox.deliver(b"late", 1, self.topic, 9)
        self.bench.router.flush()
        assert bob.writes == []
        assert bob.outbox.queued == 0

    def test_a_closed_outbox_does_not_become_slow(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.shut("disconnected")
        bob.outbox.pause()
        assert not self.bench.router.slow


class MemoryTests(OutboxCase):
    """Charges to the memory budget"""

    def test_a_ready_outbox_is_not_charged(self) -> None:
        self.subscriber()
        self.publish(b"x" * 100 * KIB)
        assert self.bench.memory.held[SUBSCRIBERS] == 0

    def test_unsent_messages_are_charged_until_they_are_sent(self) -> None:
        bob = self.subscriber()
        bob.room = 1
        self.publish(b"x" * 99)
        self.publish(b"y" * 49)
        assert self.bench.memory.held[SUBSCRIBERS] == 150
        bob.drain(room=1)
        assert self.bench.memory.held[SUBSCRIBERS] == 50
        bob.drain()
        assert self.bench.memory.held[SUBSCRIBERS] == 0

    def test_an_outbox_with_a_large_backlog_can_be_evicted(self) -> None:
        bob = self.subscriber()
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"x" * 60 * KIB)
        assert not self.bench.memory.holders
        self.publish(b"x" * 10 * KIB)
        assert self.bench.memory.largest() is bob.outbox
        assert bob.outbox.held == 70 * KIB + 2
        bob.outbox.evict("memory bound")
        assert self.bench.closed == ["memory bound"]
        assert self.bench.memory.used == 0
        assert not self.bench.memory.holders

    @given(
        st.sampled_from([PAUSE, DROP, DISCONNECT]),
        st.lists(
            st.one_of(
                st.tuples(st.just("publish"), st.integers(0, 300)),
                st.tuples(st.just("drain"), st.integers(0, 3)),
                st.tuples(st.sampled_from(["pause", "hold", "release", "turn"]), st.just(0)),
            ),
            max_size=40,
        ),
    )
    def test_every_message_is_sent_in_order_or_counted(
        self, action: str, steps: list[tuple[str, int]]
    ) -> None:
        self.setUp()
        bob = self.subscriber(SlowPolicy(action, 512, 30))
        box = bob.outbox
        assert box is not None
        published = 0
        for step, amount in steps:
            if step == "publish":
                payload = b"%d:" % published + b"." * amount
                batch = batch_of([payload], offset=published)
                self.bench.router.route(self.topic, batch)
                published += bool(self.topic.groups)
            elif step == "drain":
                bob.drain(room=amount or None)
            elif step == "turn":
                self.bench.turn()
            else:
                {"pause": box.pause, "hold": box.hold, "release": box.release}[step]()
        self.bench.turn()
        first = box.shut("disconnected")
        written = [int(line.partition(b":")[0]) for line in bob.data.splitlines()]
        assert written == sorted(set(written))
        assert len(written) == self.bench.counters.delivered
        assert len(written) + self.bench.counters.dropped == published
        assert all(number < first.get(self.topic, published) for number in written)
        assert self.bench.memory.used == 0
        assert not self.bench.memory.holders
        assert not self.bench.router.slow
        assert not self.topic.blockers
