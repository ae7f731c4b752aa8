"""The policy auto: the queue of a slow subscriber is freed, and it continues from the history."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from pubsub.broker.delivery.slow_policy import AUTO, SlowPolicy
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.memory_budget import SUBSCRIBERS
from pubsub.broker.routing import sliced_routing
from pubsub.broker.routing.batch import Batch, Page
from pubsub.broker.topic_space.topics import KeyChange, Topic
from pubsub.kernel import Columns
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Lines, Reader
from tests.unit.let_go_case import KIB, LetGoCase


class LetGoTests(LetGoCase):
    """From live delivery to the history and back"""

    def test_under_the_mark_a_subscriber_is_live(self) -> None:
        bob = self.subscriber(self.news)
        self.box(bob).pause()
        self.publish(self.news, b"0" + b"." * 900)
        assert self.box(bob).cursor is None
        assert self.box(bob).queued > 900

    def test_over_the_mark_nothing_is_held_and_no_publisher_waits(self) -> None:
        bob, eve = self.stuck(self.news), self.subscriber(self.news)
        charged = self.broker.memory.held[SUBSCRIBERS]
        assert self.box(bob).queued == self.box(bob).held == charged
        for number in range(100):
            self.publish(self.news, b"%d" % number + b"." * 400)
        assert self.box(bob).held == 0
        assert not self.news.blockers
        assert self.numbers(eve) == [b"n%d" % n for n in range(100)]
        assert self.closed == []

    def test_it_continues_at_the_first_message_it_has_not_taken(self) -> None:
        bob = self.subscriber(self.news)
        self.publish(self.news, b"taken")
        self.box(bob).pause()
        for number in range(20):
            self.publish(self.news, b"%d" % number + b"." * 400)
        self.read_all(bob)
        assert self.box(bob).cursor is None
        self.publish(self.news, b"live")
        assert self.numbers(bob) == [b"ntaken", *(b"n%d" % n for n in range(20)), b"nlive"]
        assert self.drops() == {}
        assert self.broker.counters.delivered == 22

    def test_the_page_and_the_change_to_live_delivery_are_one_step(self) -> None:
        bob = self.stuck(self.news)
        bob.drain()
        # Published after the page was read and before the tick ends, and in the tick itself.
        self.publisher.publish(self.news, Columns.of([b"4"]))
        self.clock.advance(0)
        self.publisher.publish(self.news, Columns.of([b"5"]))
        self.advance()
        assert self.numbers(bob) == [b"n%d" % n for n in range(6)]
        assert self.news.behind is None

    def test_topics_keep_their_common_order(self) -> None:
        bob = self.subscriber(self.news, self.sport)
        self.box(bob).pause()
        for number in range(30):
            topic = self.sport if number % 3 else self.news
            self.publish(topic, b"%d" % number + b"." * 200)
        self.read_all(bob)
        self.publish(self.news, b"30")
        wanted = [b"s%d" % n if n % 3 else b"n%d" % n for n in range(31)]
        assert self.numbers(bob) == wanted

    def test_a_topic_of_the_same_tick_that_was_not_delivered_yet_comes_once(self) -> None:
        bob = self.subscriber(self.news, self.sport)
        self.box(bob).pause()
        self.publisher.publish(self.news, Columns.of([b"0" + b"." * 2 * KIB]))
        self.publisher.publish(self.sport, Columns.of([b"1"]))
        self.publisher.publish(self.news, Columns.of([b"2"]))
        self.advance(1)
        self.read_all(bob)
        assert self.numbers(bob) == [b"n0", b"s1", b"n2"]
        assert self.broker.counters.delivered == 3

    def test_an_uncommitted_message_is_in_the_page(self) -> None:
        reads: list[bool] = []
        store = MemoryStore(1000, 2**26)
        read = store.read

        def noting(*given: Any, fresh: bool = False, **named: Any) -> Deferred[Page]:
            reads.append(fresh)
            return read(*given, fresh=fresh, **named)  # type: ignore[misc]

        self.patch(store, "read", noting)  # type: ignore[no-untyped-call]
        self.start_broker(store)
        self.read_all(self.stuck(self.news))
        assert reads
        assert all(reads)

    def test_a_new_subscription_waits_its_turn(self) -> None:
        bob = self.stuck(self.news)
        self.publish(self.sport, b"before the subscription")
        assert self.broker.router.subscribe(self.box(bob), self.sport, Lines(b"s"))
        assert not self.broker.router.subscribe(self.box(bob), self.sport, Lines(b"s"))
        self.publish(self.sport, b"after it")
        self.publish(self.news, b"4")
        self.read_all(bob)
        assert self.numbers(bob)[-3:] == [b"n3", b"safter it", b"n4"]
        assert set(self.box(bob).subscriptions) == {self.news, self.sport}

    def test_a_subscription_that_ends_meanwhile_is_over(self) -> None:
        bob = self.stuck(self.news, self.sport)
        self.publish(self.sport, b"4")
        assert self.broker.router.unsubscribe(self.box(bob), self.news)
        assert not self.broker.router.unsubscribe(self.box(bob), self.news)
        self.read_all(bob)
        assert self.numbers(bob) == [b"s4"]
        assert list(self.box(bob).subscriptions) == [self.sport]
        assert not self.news.has_readers

    def test_a_subscription_that_begins_again_has_no_history(self) -> None:
        bob = self.stuck(self.news)
        self.broker.router.unsubscribe(self.box(bob), self.news)
        self.broker.router.subscribe(self.box(bob), self.news, Lines(b"n"))
        self.publish(self.news, b"4")
        self.read_all(bob)
        assert self.numbers(bob) == [b"n4"]

    def test_a_remote_topic_stays_wanted(self) -> None:
        bob = self.stuck(self.news)
        assert not self.news.groups
        assert self.news.has_readers
        self.box(bob).shut("disconnected")
        assert not self.news.has_readers

    def test_a_message_of_a_mix_is_counted_and_delivered(self) -> None:
        bob = self.stuck(self.news, self.sport)
        mix = self.broker.router.mix([self.news, self.sport])
        indexes = [mix.topics.index(t) for t in (self.sport, self.news, self.sport)]
        for _ in range(2):
            columns = Columns.of([b"4", b"5", b"6"], indexes)
            assert self.publisher.publish_mixed(mix, columns) is not None
            self.advance(1)
        assert self.box(bob).queued == 0
        self.read_all(bob)
        assert self.numbers(bob)[4:] == [b"s4", b"n5", b"s6"] * 2
        assert self.drops() == {}

    def test_messages_that_are_not_for_the_client_are_left_out(self) -> None:
        def receives(topic: Topic, batch: Batch) -> bool:
            return batch.sender != b"bob"

        bob = self.subscriber(self.news, reader=Reader(receives=receives))
        self.box(bob).pause()
        self.publish(self.news, b"0" + b"." * 2 * KIB)
        self.publisher.sender = b"bob"
        self.publish(self.news, b"own")
        self.publisher.sender = b"alice"
        self.publish(self.news, b"2")
        self.read_all(bob)
        assert self.numbers(bob) == [b"n0", b"n2"]
        assert self.drops() == {}

    def test_a_recheck_reaches_a_subscriber_that_is_behind(self) -> None:
        changes: list[KeyChange | None] = []

        def recheck(topic: Topic, change: KeyChange | None) -> bool:
            changes.append(change)
            return False

        bob = self.subscriber(self.news, reader=Reader(recheck=recheck))
        self.box(bob).pause()
        self.publish(self.news, b"0" + b"." * 2 * KIB)
        change = KeyChange(None, b"key")
        counts = self.broker.router.recheck(self.news, change)
        assert self.successResultOf(counts) == (0, 1)
        self.read_all(bob)
        assert changes == [change]
        assert self.numbers(bob) == []

    def test_a_recheck_that_waits_comes_before_what_is_published_later(self) -> None:
        self.patch(sliced_routing, "_FEW", 0)  # type: ignore[no-untyped-call]
        self.patch(sliced_routing, "_UNITS", 1)  # type: ignore[no-untyped-call]

        def end(topic: Topic, change: KeyChange | None) -> bool:
            self.box(bob).send(b"end\n")
            return False

        bob = self.subscriber(self.news, reader=Reader(recheck=end))
        self.box(bob).pause()
        for number in range(4):
            self.publish(self.news, b"%d" % number + b"." * 400)
        assert self.box(bob).cursor is not None
        # They are rechecked before it.
        for _ in range(10):
            self.subscriber(self.news, reader=Reader(recheck=lambda topic, change: True))
        done = self.broker.router.recheck(self.news, KeyChange(None, b"key"))
        self.publisher.publish(self.news, Columns.of([b"secret"]))
        self.assertNoResult(done)  # type: ignore[no-untyped-call]
        # It reads the history before its turn.
        self.read_all(bob)
        assert b"secret" not in bob.data
        assert b"end\n" in bob.data
        assert self.successResultOf(done) == (10, 1)

    def test_one_that_falls_behind_while_a_recheck_waits(self) -> None:
        self.patch(sliced_routing, "_FEW", 0)  # type: ignore[no-untyped-call]
        self.patch(sliced_routing, "_UNITS", 1)  # type: ignore[no-untyped-call]
        kept = Reader(recheck=lambda topic, change: True)
        others = [self.subscriber(self.news, reader=kept) for _ in range(3)]
        reader = Reader(recheck=lambda topic, change: change == KeyChange(None, b"k1"))
        bob = self.subscriber(self.news, self.sport, reader=reader)
        self.box(bob).pause()
        first = self.broker.router.recheck(self.news, KeyChange(None, b"k1"))
        # These wait for the first change. It falls behind when they are delivered.
        for number in range(4):
            self.publisher.publish(self.news, Columns.of([b"%d" % number + b"." * KIB]))
        second = self.broker.router.recheck(self.news, KeyChange(b"k1", b"k2"))
        self.publisher.publish(self.news, Columns.of([b"secret"]))
        self.advance()
        assert self.successResultOf(first) == (4, 0)
        assert self.successResultOf(second) == (3, 1)
        assert self.news.behind is None
        assert self.box(bob).topics() == (self.sport,)
        self.publish(self.sport, b"x")
        self.read_all(bob)
        assert self.numbers(bob) == [b"sx"]
        for other in others:
            assert self.numbers(other) == [b"n0", b"n1", b"n2", b"n3", b"nsecret"]
        assert self.broker.router.subscriptions == 4

    def test_a_topic_that_ends_is_left(self) -> None:
        bob = self.stuck(self.news, self.sport)
        self.broker.topic_lifecycle.end(self.news)
        self.publish(self.sport, b"4")
        self.read_all(bob)
        assert self.numbers(bob) == [b"s4"]

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["news", "sport", "news", "sport", "pause", "one", "all", "turn", "again"]
                ),
                st.sampled_from([0, 100, 700]),
            ),
            max_size=60,
        )
    )
    def test_every_message_comes_once_and_in_order(self, steps: list[tuple[str, int]]) -> None:
        self.setUp()
        bob, number = self.subscriber(self.news, self.sport), 0
        for step, size in steps:
            topic = {"news": self.news, "sport": self.sport}.get(step)
            if topic is not None:
                payload = b"%d" % number + b"." * size
                self.publisher.publish(topic, Columns.of([payload]))
                number += 1
            elif step == "pause":
                self.box(bob).pause()
            elif step in ("one", "all"):
                bob.drain(room=1 if step == "one" else None)
            else:
                self.advance(1 if step == "turn" else 5)
        self.read_all(bob)
        assert [int(line[1:]) for line in self.numbers(bob)] == list(range(number))
        assert self.box(bob).cursor is None
        assert self.drops() == {}
        assert self.broker.counters.delivered == number
        assert not self.broker.router.behind


class UnstoredTests(LetGoCase):
    """Topics that are not stored"""

    def test_they_are_dropped_and_counted_while_the_subscriber_is_behind(self) -> None:
        bob = self.subscriber(self.news, self.chat)
        self.box(bob).pause()
        self.publish(self.chat, b"queued")
        self.publish(self.news, b"0" + b"." * 2 * KIB)
        self.publish(self.chat, b"meanwhile", b"too")
        self.read_all(bob)
        self.publish(self.chat, b"live")
        assert self.numbers(bob) == [b"n0", b"clive"]
        assert self.drops() == {("chat", "slow-consumer"): 3}
        assert self.broker.counters.delivered == 2

    def test_alone_they_may_take_the_limit_in_bytes(self) -> None:
        bob = self.subscriber(self.chat)
        self.box(bob).pause()
        for number in range(10):
            self.publish(self.chat, b"%d" % number + b"." * 500)
        assert self.box(bob).cursor is None
        self.read_all(bob)
        assert self.numbers(bob) == [b"c%d" % n for n in range(8)]
        assert self.drops() == {("chat", "slow-consumer"): 2}
        assert self.closed == []
        assert not self.chat.blockers

    def test_after_a_time_they_are_dropped(self) -> None:
        bob = self.subscriber(self.chat)
        self.box(bob).pause()
        self.publish(self.chat, b"old")
        self.clock.advance(31)
        self.broker.router.sweep()
        self.publish(self.chat, b"meanwhile")
        self.read_all(bob)
        self.publish(self.chat, b"live")
        assert self.numbers(bob) == [b"clive"]
        assert self.drops() == {("chat", "slow-consumer"): 2}


class LimitTests(LetGoCase):
    """Time and memory"""

    def test_after_slow_seconds_a_subscriber_under_the_mark_is_let_go_of(self) -> None:
        bob = self.subscriber(self.news)
        self.box(bob).pause()
        self.publish(self.news, b"0")
        self.clock.advance(31)
        self.broker.router.sweep()
        assert self.box(bob).queued == 0
        self.clock.advance(1000)
        self.broker.router.sweep()
        assert self.closed == []
        self.read_all(bob)
        assert self.numbers(bob) == [b"n0"]

    def test_a_subscriber_that_has_taken_everything_is_not_let_go(self) -> None:
        bob = self.subscriber(self.news)
        bob.room = 1
        self.publish(self.news, b"0")
        self.clock.advance(31)
        self.broker.router.sweep()
        assert self.box(bob).cursor is None

    def test_there_is_a_limit_on_catching_up_if_it_is_configured(self) -> None:
        self.stuck(self.news, policy=SlowPolicy(AUTO, 4 * KIB, 30, 100))
        self.clock.advance(99)
        assert self.closed == []
        self.clock.advance(1)
        assert self.closed == ["slow consumer: has not caught up within 100 s"]

    def test_the_limit_ends_when_the_subscriber_is_live(self) -> None:
        bob = self.stuck(self.news, policy=SlowPolicy(AUTO, 4 * KIB, 30, 100))
        self.read_all(bob)
        self.clock.advance(200)
        assert self.closed == []
        assert not self.clock.getDelayedCalls()

    def test_at_the_memory_bound_a_large_queue_is_let_go_of(self) -> None:
        self.start_broker(MemoryStore(10_000, 2**26), BrokerLimits(max_memory=200 * KIB))
        bob = self.subscriber(self.news, policy=SlowPolicy())
        self.box(bob).pause()
        for _ in range(4):
            self.publish(self.news, b"x" * 100 * KIB)
        assert self.box(bob).held == 0
        assert not self.broker.memory.full

    def test_at_the_memory_bound_a_small_mark_stays(self) -> None:
        """Otherwise stored messages above ``slow-bytes`` would be dropped."""
        self.start_broker(MemoryStore(10_000, 2**26), BrokerLimits(max_memory=200 * KIB))
        bob = self.subscriber(self.news)
        self.box(bob).pause()
        self.broker.memory.add(200 * KIB)
        for number in range(20):
            self.publish(self.news, b"%d" % number + b"." * 400)
        self.broker.memory.free(200 * KIB)
        self.read_all(bob)
        assert self.numbers(bob) == [b"n%d" % n for n in range(20)]
        assert self.drops() == {}


class LossTests(LetGoCase):
    """Messages that the subscriber does not get"""

    def test_messages_overtaken_by_retention_are_counted_for_each_topic(self) -> None:
        self.start_broker(MemoryStore(10, 2**26))
        bob = self.stuck(self.news, self.sport)
        for number in range(4, 24):
            self.publish(self.sport if number % 2 else self.news, b"%d" % number)
        self.publish(self.chat, b"not bob's")
        self.read_all(bob)
        got = self.numbers(bob)
        assert got == [b"s%d" % n if n % 2 else b"n%d" % n for n in range(14, 24)]
        assert self.drops() == {("news", "expired"): 9, ("sport", "expired"): 5}

    def test_messages_not_taken_are_counted_when_the_connection_ends(self) -> None:
        bob = self.stuck(self.news, self.sport)
        self.publish(self.sport, b"4", b"5")
        self.publish(self.news, b"6")
        self.box(bob).shut("disconnected")
        assert self.drops() == {("news", "disconnected"): 5, ("sport", "disconnected"): 2}
        assert self.broker.counters.delivered == 0
        assert self.broker.memory.used == 3 * KIB

    def test_a_session_continues_where_the_cursor_was(self) -> None:
        bob = self.stuck(self.news, self.sport)
        self.publish(self.sport, b"4")
        assert self.box(bob).shut_and_get_offsets() == {self.news: 0, self.sport: 2}
        assert self.drops() == {}

    def test_a_queued_topic_without_later_messages_has_a_position(self) -> None:
        bob = self.subscriber(self.news, self.sport)
        self.box(bob).pause()
        self.publish(self.sport, b"0")
        self.publish(self.news, b"1" + b"." * 2 * KIB)
        assert self.box(bob).unsent() == {self.sport: 0, self.news: 1}
