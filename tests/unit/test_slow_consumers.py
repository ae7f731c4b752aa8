"""Slow subscribers: the effect of each policy on subscribers and publishers."""

from __future__ import annotations

from pubsub.broker.delivery.slow_policy import AUTO, DISCONNECT, DROP, PAUSE, SlowPolicy
from pubsub.broker.topic_space.topics import Topic
from tests.unit.fakes import Held, Lines, Transport, batch_of
from tests.unit.outbox_case import KIB, OutboxCase


class PauseTests(OutboxCase):
    """The policy ``pause``: publishers are held"""

    policy = SlowPolicy(PAUSE, 4 * KIB, 30)

    def test_over_a_quarter_of_the_limit_the_topic_is_blocked(self) -> None:
        bob = self.subscriber(self.policy)
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"x" * (KIB - 1))
        assert not self.topic.blockers
        self.publish(b"y")
        assert self.topic.blockers == {bob.outbox}
        assert self.bench.closed == []

    def test_publishers_go_on_when_all_has_left(self) -> None:
        bob, publisher = self.subscriber(self.policy), Held()
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"x" * (KIB + 1))
        self.topic.wait(publisher)
        bob.drain(room=1)
        assert publisher.reasons == {self.topic}
        bob.drain()
        assert publisher.reasons == set()
        assert publisher.releases == 1
        assert not self.topic.blockers

    def test_only_the_topics_that_make_it_fall_behind_are_blocked(self) -> None:
        bob, other = self.subscriber(self.policy), Topic("other")
        assert bob.outbox is not None
        self.bench.router.subscribe(bob.outbox, other, Lines())
        bob.outbox.pause()
        self.publish(b"x" * (2 * KIB))
        assert self.topic.blockers
        assert not other.blockers
        self.publish(b"x", topic=other)
        assert other.blockers == {bob.outbox}

    def test_over_the_limit_it_is_disconnected_and_the_rest_counted(self) -> None:
        bob = self.subscriber(self.policy)
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"x" * (2 * KIB))
        self.publish(b"x" * (2 * KIB - 2))
        assert self.bench.closed == []
        self.publish(b"y", b"z")
        assert self.bench.closed == ["slow consumer: over 4096 bytes behind"]
        assert self.drops() == {("bob", "t", "slow-consumer"): 2, ("bob", "t", "disconnected"): 2}
        assert self.bench.counters.delivered == 0
        assert not self.topic.blockers
        assert not self.topic.groups

    def test_bytes_in_the_transport_count(self) -> None:
        bob = self.subscriber(self.policy)
        bob.room = 1
        self.publish(b"x" * (3 * KIB))
        assert bob.outbox is not None
        assert bob.outbox.queued == 0
        self.publish(b"y" * KIB)
        assert self.bench.closed == ["slow consumer: over 4096 bytes behind"]

    def test_behind_for_too_long_it_is_disconnected(self) -> None:
        bob = self.subscriber(self.policy)
        assert bob.outbox is not None
        bob.outbox.pause()
        self.bench.clock.advance(30)
        self.bench.router.sweep()
        assert self.bench.closed == []
        bob.outbox.pause()
        self.bench.clock.advance(0.5)
        self.bench.router.sweep()
        assert self.bench.closed == ["slow consumer: behind for 30 s"]
        assert not self.bench.router.slow

    def test_a_subscriber_that_has_caught_up_starts_a_new_period(self) -> None:
        bob = self.subscriber(self.policy)
        assert bob.outbox is not None
        bob.outbox.pause()
        self.bench.clock.advance(20)
        bob.outbox.resume()
        bob.outbox.pause()
        self.bench.clock.advance(20)
        self.bench.router.sweep()
        assert self.bench.closed == []

    def test_a_subscriber_that_reads_and_is_hardly_behind_is_not_slow(self) -> None:
        bob = self.subscriber(self.policy)
        bob.room = 1
        for _ in range(100):
            self.publish(b"x" * 100)
            self.bench.clock.advance(10)
            self.bench.router.sweep()
            self.publish(b"x" * 100)
            bob.drain(room=1)
        assert self.bench.closed == []
        assert len(bob.data) >= 100 * 2 * 101 - 2 * KIB

    def test_the_largest_mark_is_a_mebibyte(self) -> None:
        assert SlowPolicy(PAUSE, 64 * KIB * KIB).high_water_mark == KIB * KIB
        assert SlowPolicy(PAUSE, 2 * KIB).high_water_mark == 512


class DropTests(OutboxCase):
    """The policy ``drop``"""

    policy = SlowPolicy(DROP, KIB, 30)

    def test_messages_over_the_limit_are_dropped_and_counted(self) -> None:
        bob = self.subscriber(self.policy)
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"x" * (KIB - 3))
        self.publish(b"lost", b"too")
        self.publish(b"y")
        self.publish(b"z")
        bob.outbox.resume()
        assert bob.data == b"x" * (KIB - 3) + b"\ny\n"
        assert self.drops() == {("bob", "t", "slow-consumer"): 3}
        assert self.bench.counters.delivered == 2
        assert self.bench.closed == []

    def test_it_neither_blocks_nor_is_disconnected(self) -> None:
        bob = self.subscriber(self.policy)
        assert bob.outbox is not None
        bob.outbox.pause()
        for _ in range(50):
            self.publish(b"x" * 100)
        self.bench.clock.advance(10_000)
        self.bench.router.sweep()
        assert not self.topic.blockers
        assert self.bench.closed == []

    def test_drops_are_counted_by_client_and_topic(self) -> None:
        bob, eve = self.subscriber(self.policy), self.subscriber(self.policy, "eve")
        other = Topic("other")
        assert bob.outbox is not None
        assert eve.outbox is not None
        self.bench.router.subscribe(eve.outbox, other, Lines())
        bob.outbox.pause()
        eve.outbox.pause()
        self.publish(b"x" * 2 * KIB)
        self.publish(b"x" * 2 * KIB, b"y", topic=other)
        assert self.drops() == {
            ("bob", "t", "slow-consumer"): 1,
            ("eve", "t", "slow-consumer"): 1,
            ("eve", "other", "slow-consumer"): 2,
        }


class DisconnectTests(OutboxCase):
    """The policy ``disconnect``"""

    policy = SlowPolicy(DISCONNECT, KIB, 5)

    def test_no_publisher_waits(self) -> None:
        bob = self.subscriber(self.policy)
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"x" * (KIB - 1))
        assert not self.topic.blockers
        assert self.bench.closed == []

    def test_over_the_limit_it_is_disconnected_and_others_are_not(self) -> None:
        bob, eve = self.subscriber(self.policy), self.subscriber(self.policy, "eve")
        assert bob.outbox is not None
        bob.outbox.pause()
        self.publish(b"x" * KIB)
        assert self.bench.closed == ["slow consumer: over 1024 bytes behind"]
        assert eve.data == b"x" * KIB + b"\n"
        assert self.bench.counters.delivered == 1

    def test_behind_for_too_long_it_is_disconnected(self) -> None:
        bob = self.subscriber(self.policy)
        assert bob.outbox is not None
        bob.outbox.pause()
        self.bench.clock.advance(5.5)
        self.bench.router.sweep()
        assert self.bench.closed == ["slow consumer: behind for 5 s"]

    def test_one_turn_over_the_limit_on_two_topics_gives_it_up_once(self) -> None:
        bob, other = self.subscriber(self.policy), Topic("other")
        assert bob.outbox is not None
        self.bench.router.subscribe(bob.outbox, other, Lines())
        bob.outbox.pause()
        for topic in (self.topic, other):
            self.bench.router.route(topic, batch_of([b"x" * KIB], topic.name, offset=self.offset))
        self.bench.turn()
        assert self.bench.closed == ["slow consumer: over 1024 bytes behind"]
        assert self.bench.counters.dropped == 2
        assert self.bench.counters.delivered == 0


class HeldTests(OutboxCase):
    """Messages that the broker itself holds back"""

    def held(self, policy: SlowPolicy) -> Transport:
        """Return a subscriber that reads slowly, for which 5 MiB were held back until now."""
        bob = self.subscriber(policy)
        assert bob.outbox is not None
        bob.outbox.hold()
        for _ in range(20):
            self.publish(b"x" * (256 * KIB))
        bob.room = 1
        bob.outbox.release()
        return bob

    def test_they_do_not_count_as_slowness(self) -> None:
        for action in (AUTO, DROP, DISCONNECT):
            bob = self.subscriber(SlowPolicy(action, 4 * KIB, 30))
            assert bob.outbox is not None
            bob.outbox.hold()
            for _ in range(10):
                self.publish(b"x" * KIB)
            bob.room = 1
            bob.outbox.release()
            self.publish(b"last")
            bob.drain()
            assert bob.data == (b"x" * KIB + b"\n") * 10 + b"last\n"
            bob.outbox.shut("disconnected")
        assert self.drops() == {}
        assert self.bench.closed == []

    def test_messages_after_the_hold_do(self) -> None:
        bob = self.held(SlowPolicy(DROP, 1024 * KIB, 30))
        for _ in range(5):
            self.publish(b"y" * (256 * KIB))
        assert self.drops() == {("bob", "t", "slow-consumer"): 2}
        bob.drain()
        assert bob.data.count(b"\n") == 23

    def test_it_is_not_slow_while_it_reads_them(self) -> None:
        bob = self.held(SlowPolicy(DISCONNECT, 1024 * KIB, 30))
        for _ in range(4):
            self.bench.clock.advance(20)
            self.bench.router.sweep()
            bob.drain(room=1)
        assert self.bench.closed == []
        self.bench.clock.advance(31)
        self.bench.router.sweep()
        assert self.bench.closed == ["slow consumer: behind for 30 s"]

    def test_they_do_if_the_memory_is_full(self) -> None:
        bob = self.subscriber(SlowPolicy(DROP, 4 * KIB, 30))
        own = self.bench.memory.used
        self.bench.memory.limit = own + 8 * KIB
        assert bob.outbox is not None
        bob.outbox.hold()
        for _ in range(20):
            self.publish(b"x" * KIB)
        assert 8 * KIB <= self.bench.memory.used - own <= 10 * KIB
        assert self.drops()[("bob", "t", "slow-consumer")] == 12

    def test_publishers_wait_for_a_subscriber_of_pause(self) -> None:
        bob = self.subscriber(SlowPolicy(PAUSE, 4 * KIB, 30))
        assert bob.outbox is not None
        bob.outbox.hold()
        for _ in range(6):
            self.publish(b"x" * KIB)
        assert self.topic.blockers == {bob.outbox}
        bob.outbox.release()
        assert not self.topic.blockers
        assert self.bench.closed == []
