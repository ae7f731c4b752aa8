"""Router: one encoding for each group, one write for each tick, changes within a tick."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from pubsub.broker.delivery.slow_policy import DISCONNECT, SlowPolicy
from pubsub.broker.routing import router
from pubsub.broker.routing.audience import WRITE_BYTES
from pubsub.broker.topic_space.topics import KeyChange, Topic
from tests.unit.fakes import Lines, Transport
from tests.unit.router_case import RouterCase


class TurnTests(RouterCase):
    """When messages are sent"""

    def test_nothing_is_sent_before_the_tick_ends(self) -> None:
        bob = self.subscriber(self.news)
        self.route(self.news, b"a")
        assert bob.writes == []
        self.bench.turn()
        assert bob.writes == [b"a\n"]

    def test_a_tick_is_one_write_in_publish_order(self) -> None:
        bob = self.subscriber(self.news)
        for payload in (b"a", b"b", b"c"):
            self.route(self.news, payload)
        self.bench.turn()
        assert bob.writes == [b"a\nb\nc\n"]

    def test_a_tick_of_several_topics_is_one_write(self) -> None:
        bob = self.subscriber(self.news, self.sport)
        self.route(self.news, b"n1")
        self.route(self.sport, b"s1")
        self.route(self.news, b"n2")
        self.bench.turn()
        assert len(bob.writes) == 1
        lines = bob.data.splitlines()
        assert sorted(lines) == [b"n1", b"n2", b"s1"]
        assert lines.index(b"n1") < lines.index(b"n2")

    def test_the_end_of_the_tick_is_scheduled_once(self) -> None:
        self.subscriber(self.news, self.sport)
        for turn in (1, 2):
            for _ in range(3):
                self.route(self.news, b"a")
                self.route(self.sport, b"b")
            assert self.bench.ticks == turn
            self.bench.turn()

    def test_without_subscribers_no_end_of_the_tick_is_scheduled(self) -> None:
        self.route(self.news, b"a")
        assert self.bench.ticks == 0

    def test_an_early_flush_leaves_nothing_for_the_end_of_the_tick(self) -> None:
        bob = self.subscriber(self.news)
        self.route(self.news, b"a")
        self.router.flush()
        assert bob.writes == [b"a\n"]
        self.bench.turn()
        assert bob.writes == [b"a\n"]

    def test_deliveries_are_counted_for_each_subscriber(self) -> None:
        for _ in range(3):
            self.subscriber(self.news)
        self.subscriber(self.sport)
        self.route(self.news, b"a", b"b")
        self.bench.turn()
        assert self.bench.counters.delivered == 6


class ManySubscribersTests(RouterCase):
    """More subscribers than are written to in a tick"""

    def setUp(self) -> None:
        super().setUp()
        self.patch(router, "_WRITES", 3)  # type: ignore[no-untyped-call]
        self.all = [self.subscriber(self.news) for _ in range(8)]

    def lengths(self) -> list[int]:
        return [len(one.writes) for one in self.all]

    def test_some_are_written_to_in_each_tick(self) -> None:
        self.route(self.news, b"a")
        for expected in (3, 6, 8):
            self.router.flush()
            assert self.lengths() == [1] * expected + [0] * (8 - expected)
        assert self.bench.counters.delivered == 8
        assert {one.data for one in self.all} == {b"a\n"}
        assert not self.router.gate.shut

    def test_the_rest_follows_by_itself(self) -> None:
        self.route(self.news, b"a")
        self.bench.turn()
        assert self.lengths() == [1] * 8

    def test_later_messages_come_behind(self) -> None:
        self.subscriber(self.sport)
        for number in range(6):
            self.route(self.news, b"%d" % number)
            self.router.flush()
        for _ in range(10):
            self.router.flush()
        assert {one.data for one in self.all} == {b"0\n1\n2\n3\n4\n5\n"}

    def test_publishers_are_held_meanwhile(self) -> None:
        self.route(self.news, b"a")
        assert not self.router.gate.shut
        for shut in (True, True, False):
            self.router.flush()
            assert self.router.gate.shut is shut

    def test_those_that_cannot_be_held_do_not_fill_memory(self) -> None:
        self.route(self.news, b"a")
        self.router.flush()
        for _ in range(2):
            self.route(self.news, bytes(WRITE_BYTES // 2))
        self.router.flush()
        assert not self.router.gate.shut
        assert {len(one.data) for one in self.all} == {2 + 2 * (WRITE_BYTES // 2 + 1)}
        self.route(self.news, b"b")
        self.router.flush()
        assert self.router.gate.shut

    def test_the_read_of_a_publisher_that_is_held_waits(self) -> None:
        """It is held after it, and a read alone may be too large."""
        self.route(self.news, b"a")
        self.router.flush()
        publisher = Mock()
        self.route(self.news, bytes(WRITE_BYTES + 1))
        self.router.gate.wait(publisher)
        self.router.flush()
        assert self.router.gate.shut
        for _ in range(3):
            self.router.flush()
        publisher.release.assert_called_once()
        assert {len(one.data) for one in self.all} == {2 + WRITE_BYTES + 2}

    def test_fewer_are_written_to_with_very_many_bytes(self) -> None:
        self.patch(router, "_WRITTEN", 1000)  # type: ignore[no-untyped-call]
        self.route(self.news, bytes(700))
        for expected in (2, 4, 6, 8):
            self.router.flush()
            assert self.lengths() == [1] * expected + [0] * (8 - expected)

    def test_one_that_leaves_before_its_turn_has_not_got_the_message(self) -> None:
        self.route(self.news, b"a")
        self.router.flush()
        self.box(self.all[-1]).shut("disconnected")
        for _ in range(3):
            self.router.flush()
        assert self.lengths() == [1] * 7 + [0]
        assert self.bench.counters.delivered == 7
        assert self.bench.counters.dropped == 1

    def test_one_that_returns_resumes_at_the_message(self) -> None:
        self.route(self.news, b"a")
        self.route(self.news, b"b")
        self.router.flush()
        assert self.box(self.all[-1]).shut_and_get_offsets() == {self.news: 0}
        assert self.bench.counters.dropped == 0

    def test_control_frames_are_behind_the_messages(self) -> None:
        self.route(self.news, b"a")
        self.router.flush()
        self.box(self.all[-1]).send(b"control\n")
        assert self.all[-1].data == b"a\ncontrol\n"
        self.router.flush()
        self.router.flush()
        assert self.all[-1].data == b"a\ncontrol\n"

    def test_what_a_change_of_the_key_sends_to_all(self) -> None:
        transports: list[Transport] = []

        def updated(number: int) -> Callable[[Topic, KeyChange | None], bool]:
            def recheck(topic: Topic, change: KeyChange | None) -> bool:
                self.box(transports[number]).send(b"key\n")
                return bool(number % 2)

            return recheck

        for number in range(8):
            transports.append(self.bench.outbox(recheck=updated(number)))
            self.router.subscribe(self.box(transports[-1]), self.sport, Lines())
        self.route(self.sport, b"before")
        assert self.successResultOf(self.router.recheck(self.sport)) == (4, 4)
        self.route(self.sport, b"after")
        self.bench.turn()
        self.bench.turn()
        assert [one.data for one in transports] == 4 * [
            b"before\nkey\n",
            b"before\nkey\nafter\n",
        ]
        assert self.bench.counters.delivered == 8 + 4
        self.box(transports[0]).send(b"now\n")
        assert transports[0].writes[-1] == b"now\n"


class GroupTests(RouterCase):
    """Grouping by encoding"""

    def test_a_batch_is_encoded_once_for_each_group(self) -> None:
        encoding = Lines()
        subscribers = [self.subscriber(self.news, encoding=encoding) for _ in range(10)]
        self.route(self.news, b"a", b"b")
        self.bench.turn()
        assert len(encoding.batches) == 1
        assert {bob.data for bob in subscribers} == {b"a\nb\n"}

    def test_equal_encodings_share_a_group_and_its_bytes(self) -> None:
        first, second = Lines(b">"), Lines(b">")
        bob = self.subscriber(self.news, encoding=first)
        eve = self.subscriber(self.news, encoding=second)
        self.route(self.news, b"a")
        self.bench.turn()
        assert len(self.news.groups) == 1
        assert len(first.batches) + len(second.batches) == 1
        assert bob.writes[0] is eve.writes[0]

    def test_different_encodings_have_separate_groups(self) -> None:
        bob = self.subscriber(self.news, encoding=Lines(b"1 "))
        eve = self.subscriber(self.news, encoding=Lines(b"2 "))
        self.route(self.news, b"a")
        self.bench.turn()
        assert bob.data == b"1 a\n"
        assert eve.data == b"2 a\n"

    def test_a_group_is_removed_with_its_last_subscriber(self) -> None:
        bob, eve = self.subscriber(self.news), self.subscriber(self.news)
        self.router.unsubscribe(self.box(bob), self.news)
        assert len(self.news.groups) == 1
        self.router.unsubscribe(self.box(eve), self.news)
        assert not self.news.groups

    def test_messages_too_large_for_an_encoding_are_dropped_for_it_only(self) -> None:
        small, large = Lines(b"s", limit=3), Lines(b"l", limit=100)
        bob = self.subscriber(self.news, encoding=small)
        eve = self.subscriber(self.news, encoding=large)
        self.route(self.news, b"1", b"22222", b"333", b"4444")
        self.bench.turn()
        assert bob.data == b"s1\ns333\n"
        assert eve.data == b"l1\nl22222\nl333\nl4444\n"
        assert self.bench.counters.drops == {("bob", "news", "too-large"): 2}
        assert self.bench.counters.delivered == 2 + 4

    def test_a_batch_that_fits_is_passed_on_whole(self) -> None:
        bob = self.subscriber(self.news, encoding=Lines(limit=3))
        self.route(self.news, b"123", b"456", b"789")
        self.bench.turn()
        assert bob.data == b"123\n456\n789\n"
        assert self.bench.counters.dropped == 0

    def test_a_batch_of_which_nothing_fits_is_counted_for_every_subscriber(self) -> None:
        bobs = [self.subscriber(self.news, encoding=Lines(limit=3)) for _ in range(2)]
        self.route(self.news, b"4444", b"55555")
        self.bench.turn()
        assert [bob.writes for bob in bobs] == [[], []]
        assert self.bench.counters.dropped == 4
        assert self.bench.counters.delivered == 0


class PortionTests(RouterCase):
    """The messages of a tick are delivered in pieces"""

    def test_a_large_tick_is_delivered_in_portions(self) -> None:
        bob, eve = self.subscriber(self.news), self.subscriber(self.news)
        for transport in (bob, eve):
            self.box(transport).hold()
        payloads = [b"%d" % number + b"." * 99_990 for number in range(8)]
        for payload in payloads:
            self.route(self.news, payload)
        self.bench.turn()
        queues = [list(self.box(transport)._queue or ()) for transport in (bob, eve)]
        assert queues[0] == queues[1]
        assert [entry[1:] for entry in queues[0]] == [
            (3, self.news, 0),
            (3, self.news, 3),
            (2, self.news, 6),
        ]
        assert WRITE_BYTES <= len(queues[0][0][0]) < WRITE_BYTES + 100_000
        assert queues[0][0][0] is queues[1][0][0]
        self.box(bob).release()
        assert bob.data == b"".join(payload + b"\n" for payload in payloads)
        assert self.bench.counters.delivered == 16

    def test_one_large_batch_is_one_piece(self) -> None:
        bob = self.subscriber(self.news)
        self.box(bob).hold()
        self.route(self.news, b"." * WRITE_BYTES, b"." * WRITE_BYTES)
        self.route(self.news, b"small")
        self.bench.turn()
        assert [entry[1:] for entry in self.box(bob)._queue or ()] == [
            (2, self.news, 0),
            (1, self.news, 2),
        ]

    def test_a_subscriber_over_its_limit_gets_no_more_of_the_tick(self) -> None:
        bob = self.bench.outbox(SlowPolicy(DISCONNECT, 2 * WRITE_BYTES, 30))
        eve = self.subscriber(self.news)
        self.router.subscribe(self.box(bob), self.news, Lines())
        self.box(bob).pause()
        for _ in range(20):
            self.route(self.news, b"." * 99_999)
        self.bench.turn()
        assert len(self.bench.closed) == 1
        assert len(eve.data) == 2_000_000
        assert self.bench.counters.delivered == 20
        assert self.bench.counters.drops.keys() == {
            ("bob", "news", "slow-consumer"),
            ("bob", "news", "disconnected"),
        }


class ManySubscriptionsTests(RouterCase):
    """The end of a subscriber with many subscriptions, which takes several ticks"""

    def setUp(self) -> None:
        super().setUp()
        self.others = [Topic(f"t{number}") for number in range(500)]

    def test_messages_before_the_end_are_counted_and_later_ones_are_not_for_it(self) -> None:
        bob, eve = self.subscriber(self.news, *self.others), self.subscriber(self.news)
        self.route(self.news, b"a")
        self.box(bob).shut("disconnected")
        self.route(self.news, b"b")
        assert self.others[-1].groups
        self.bench.turn()
        assert eve.data == b"a\nb\n"
        assert bob.data == b""
        assert self.bench.counters.delivered == 2
        assert self.bench.counters.drops == {("bob", "news", "disconnected"): 1}
        assert not any(topic.groups for topic in self.others)

    def test_the_rest_of_a_tick_is_counted_when_it_is_evicted_in_it(self) -> None:
        bob = self.bench.outbox(SlowPolicy(DISCONNECT, 2 * WRITE_BYTES, 30))
        for topic in (self.news, *self.others):
            self.router.subscribe(self.box(bob), topic, Lines())
        self.box(bob).pause()
        for _ in range(20):
            self.route(self.news, b"." * 99_999)
        self.bench.turn()
        assert len(self.bench.closed) == 1
        assert self.bench.counters.delivered == 0
        assert sum(self.bench.counters.drops.values()) == 20
        assert not self.news.groups

    def test_it_is_not_checked_again(self) -> None:
        checked: list[Topic] = []

        def recheck(topic: Topic, change: KeyChange | None) -> bool:
            checked.append(topic)
            return True

        bob = self.bench.outbox(recheck=recheck)
        for topic in self.others:
            self.router.subscribe(self.box(bob), topic, Lines())
        self.box(bob).shut("disconnected")
        assert self.successResultOf(self.router.recheck(self.others[-1])) == (0, 0)
        assert checked == []


class SubscriptionTests(RouterCase):
    """subscribe, unsubscribe, forget"""

    def test_subscribing_twice_is_one_subscription(self) -> None:
        bob = self.subscriber(self.news)
        assert not self.router.subscribe(self.box(bob), self.news, Lines())
        assert not self.router.subscribe(self.box(bob), self.news, Lines(b"other"))
        self.route(self.news, b"a")
        self.bench.turn()
        assert bob.data == b"a\n"

    def test_unsubscribing_without_a_subscription_does_nothing(self) -> None:
        bob = self.subscriber(self.news)
        assert not self.router.unsubscribe(self.box(bob), self.sport)
        assert self.router.unsubscribe(self.box(bob), self.news)
        assert not self.router.unsubscribe(self.box(bob), self.news)

    def test_a_subscription_starts_with_the_next_message_of_the_tick(self) -> None:
        bob = self.subscriber(self.news)
        self.route(self.news, b"before")
        eve = self.subscriber(self.news)
        self.route(self.news, b"after")
        self.bench.turn()
        assert bob.data == b"before\nafter\n"
        assert len(bob.writes) == 1
        assert eve.data == b"after\n"

    def test_a_subscription_ends_with_the_last_message_before_it(self) -> None:
        bob, eve = self.subscriber(self.news), self.subscriber(self.news)
        self.route(self.news, b"before")
        self.router.unsubscribe(self.box(bob), self.news)
        self.route(self.news, b"after")
        self.bench.turn()
        assert bob.data == b"before\n"
        assert eve.data == b"before\nafter\n"

    def test_the_last_subscriber_gets_earlier_messages_when_it_leaves(self) -> None:
        bob = self.subscriber(self.news)
        self.route(self.news, b"before")
        self.router.unsubscribe(self.box(bob), self.news)
        self.route(self.news, b"after")
        self.bench.turn()
        assert bob.data == b"before\n"
        assert self.bench.counters.delivered == 1

    def test_forget_ends_every_subscription(self) -> None:
        bob = self.subscriber(self.news, self.sport)
        self.router.forget(self.box(bob))
        self.route(self.news, b"a")
        self.route(self.sport, b"b")
        self.bench.turn()
        assert bob.writes == []
        assert not self.news.groups
        assert not self.sport.groups

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["publish", "subscribe", "unsubscribe", "turn"]),
                st.integers(0, 3),
                st.booleans(),
            ),
            max_size=50,
        )
    )
    def test_each_subscriber_gets_the_messages_of_its_subscription(
        self, steps: list[tuple[str, int, bool]]
    ) -> None:
        self.setUp()
        encodings = [Lines(), Lines(), Lines(b">"), Lines(limit=2)]
        transports = [self.subscriber() for _ in encodings]
        expected: list[list[tuple[Topic, bytes]]] = [[] for _ in encodings]
        for number, (step, who, first) in enumerate(steps):
            topic = self.news if first else self.sport
            box = self.box(transports[who])
            if step == "subscribe":
                self.router.subscribe(box, topic, encodings[who])
            elif step == "unsubscribe":
                self.router.unsubscribe(box, topic)
            elif step == "turn":
                self.bench.turn()
            else:
                payload = b"%s%d" % (topic.name[:1].encode(), number)
                for index, transport in enumerate(transports):
                    subscribed = topic in self.box(transport).subscriptions
                    if subscribed and len(payload) <= encodings[index].limit:
                        expected[index].append((topic, encodings[index].tag + payload))
                self.route(topic, payload)
        self.bench.turn()
        for transport, due in zip(transports, expected, strict=True):
            lines = transport.data.splitlines()
            assert len(lines) == len(due)
            for topic in (self.news, self.sport):
                wanted = [line for where, line in due if where is topic]
                assert [line for line in lines if line in wanted] == wanted
        assert self.bench.counters.delivered == sum(map(len, expected))
