"""Routing in slices: batches for many audiences, and what happens before all are encoded."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.slow_policy import AUTO, SlowPolicy
from pubsub.broker.routing import router as router_module
from pubsub.broker.routing import sliced_routing, topic_mix
from pubsub.broker.topic_space.topics import KeyChange, Topic
from tests.unit.fakes import Lines, Transport, batch_of, mixed_batch
from tests.unit.stepped_bench import SteppedBench

# Distinct audiences of the topics a to e: every one of two topics.
PAIRS = ["ab", "ac", "ad", "ae", "bc", "bd", "be", "cd", "ce", "de"]


class HeldPublisher:
    """A ``Holdable``."""

    def __init__(self) -> None:
        self.held = False

    def hold(self, reason: object) -> None:
        self.held = True

    def release(self, reason: object) -> None:
        self.held = False


class SlicedCase(SynchronousTestCase):
    """Ten subscribers with topics of their own, of which a tick encodes for one."""

    def setUp(self) -> None:
        self.patch(router_module, "_FEW_AUDIENCES", 0)  # type: ignore[no-untyped-call]
        self.patch(sliced_routing, "_UNITS", 1)  # type: ignore[no-untyped-call]
        self.bench = SteppedBench()
        self.router = self.bench.router
        self.topics = {name: Topic(name) for name in "abcde"}
        self.subscribers = [self.subscriber(names) for names in PAIRS]
        self.mix = self.router.mix(self.topics.values())
        self.sent = 0

    def subscriber(self, names: str, policy: SlowPolicy | None = None) -> Transport:
        transport = self.bench.outbox(policy)
        self.subscribe(transport, names)
        return transport

    def subscribe(self, transport: Transport, names: str) -> None:
        assert transport.outbox is not None
        for name in names:
            self.router.subscribe(transport.outbox, self.topics[name], Lines(name.encode()))

    def unsubscribe(self, transport: Transport, name: str) -> None:
        assert transport.outbox is not None
        self.router.unsubscribe(transport.outbox, self.topics[name])

    def publish(self, body: str = "") -> None:
        """Publish a message to each topic in one read; their payload is the read's number."""
        self.sent += 1
        messages = [(name, f"{self.sent}{body}".encode()) for name in self.topics]
        batch = mixed_batch(messages, self.mix.names, self.sent * 5)
        self.router.route_mixed(self.mix, batch)

    def publish_one(self, name: str) -> None:
        self.sent += 1
        batch = batch_of([b"%d" % self.sent], name, offset=self.sent * 5)
        self.router.route(self.topics[name], batch)

    def made(self) -> None:
        """Have the audiences made."""
        self.publish()
        self.settle()
        for each in self.subscribers:
            each.writes.clear()

    def settle(self) -> int:
        """End ticks until all is delivered; return how many it took."""
        ticks = 1
        self.bench.turn()
        while self.router.gate.shut:
            self.bench.turn()
            ticks += 1
        return ticks

    def served(self) -> list[Transport]:
        return [each for each in self.subscribers if each.data]


def lines(*sent: str) -> bytes:
    return "".join(f"{each}\n" for each in sent).encode()


class OrderTests(SlicedCase):
    """The order of publishing"""

    def test_a_first_read_takes_several_ticks(self) -> None:
        self.publish()
        assert self.settle() > 10
        for names, each in zip(PAIRS, self.subscribers, strict=True):
            assert each.data == lines(*[f"{name}1" for name in names])
        assert self.bench.counters.delivered == 20

    def test_a_tick_encodes_for_some_of_many_audiences(self) -> None:
        self.made()
        self.publish()
        for number in range(1, 10):
            self.bench.turn()
            assert len(self.served()) == number
        self.settle()
        assert len(self.served()) == 10

    def test_what_is_published_later_comes_later(self) -> None:
        other = self.subscriber("a")
        self.publish()
        self.publish_one("a")
        self.publish()
        self.bench.turn()
        self.publish_one("b")
        self.settle()
        for names, each in zip(PAIRS, self.subscribers, strict=True):
            wanted = [f"{name}1" for name in names] + ["a2"] * ("a" in names)
            wanted += [f"{name}3" for name in names] + ["b4"] * ("b" in names)
            assert each.data == lines(*wanted)
        assert other.data == lines("a1", "a2", "a3")

    def test_publishers_are_held_until_all_is_written(self) -> None:
        publisher = HeldPublisher()
        self.publish()
        assert self.router.gate.shut
        self.router.gate.wait(publisher)
        while publisher.held:
            served = len(self.served())
            self.bench.turn()
        assert served >= 9
        assert len(self.served()) == 10
        assert not self.router.gate.shut

    def test_few_audiences_are_served_in_the_tick(self) -> None:
        self.patch(sliced_routing, "_UNITS", 300)  # type: ignore[no-untyped-call]
        self.publish()
        assert not self.router.gate.shut
        self.bench.turn()
        assert len(self.served()) == 10

    def test_messages_count_as_work(self) -> None:
        self.patch(sliced_routing, "_UNITS", 20)  # type: ignore[no-untyped-call]
        self.made()
        many = [("a", b"x")] * 600
        self.router.route_mixed(self.mix, mixed_batch(many, self.mix.names))
        assert self.router.gate.shut


class ChangeTests(SlicedCase):
    """Subscriptions that change before all is delivered"""

    def test_those_who_join_get_what_is_published_afterwards(self) -> None:
        self.made()
        self.publish()
        joining = self.subscriber("ab")
        self.bench.turn()
        self.subscribe(self.subscribers[9], "a")
        self.publish()
        self.settle()
        assert joining.data == lines("a3", "b3")
        assert self.subscribers[9].data == lines("d2", "e2", "a3", "d3", "e3")

    def test_one_who_joins_an_audience_gets_nothing_that_it_has_from_before(self) -> None:
        self.made()
        self.patch(sliced_routing, "_UNITS", 9)  # type: ignore[no-untyped-call]
        self.patch(topic_mix, "MAKING", 0)  # type: ignore[no-untyped-call]
        self.publish()
        joining = [self.subscriber(names) for names in PAIRS]
        self.publish()
        # In the tick in which the last audience is encoded for, a subscriber joins it.
        self.settle()
        for names, each in zip(PAIRS, joining, strict=True):
            assert each.data == lines(*[f"{name}3" for name in names])

    def test_those_who_leave_get_what_was_published_before_once(self) -> None:
        self.made()
        self.publish()
        self.bench.turn()
        self.publish()
        assert len(self.served()) == 1
        for names, each in zip(PAIRS, self.subscribers, strict=True):
            self.unsubscribe(each, names[0])
        self.publish()
        self.settle()
        for (first, second), each in zip(map(tuple, PAIRS), self.subscribers, strict=True):
            wanted = [f"{name}{number}" for number in (2, 3) for name in (first, second)]
            assert each.data == lines(*wanted, f"{second}4")

    def begin(self) -> None:
        """Publish, and have the subscribers looked at and some of the audiences made."""
        self.publish()
        for _ in range(8):
            self.bench.turn()
        assert 0 < len(self.mix._audience_of) < 9

    def test_changes_while_audiences_are_made(self) -> None:
        self.begin()
        for names, each in zip(PAIRS, self.subscribers, strict=True):
            self.unsubscribe(each, names[0])
            self.subscribe(each, "abcde"[("abcde".index(names[1]) + 1) % 5])
        self.publish()
        self.settle()
        for (first, second), each in zip(map(tuple, PAIRS), self.subscribers, strict=True):
            other = "abcde"[("abcde".index(second) + 1) % 5]
            later = sorted([f"{second}2", f"{other}2"])
            assert each.data[:6] == lines(f"{first}1", f"{second}1")
            assert sorted(each.data[6:].split()) == [one.encode() for one in later]

    def test_a_subscriber_that_dies_while_audiences_are_made(self) -> None:
        self.begin()
        found = self.mix._audience_of
        (transport, *_) = [each for each in self.subscribers if each.outbox not in found]
        dying = transport.outbox
        assert dying is not None
        dying.shut("disconnected")
        self.settle()
        self.publish()
        self.settle()
        assert dying not in self.mix._audience_of
        assert transport.data == b""
        assert self.bench.counters.delivered == 2 * 9 * 2
        drops = {key[1:]: count for key, count in self.bench.counters.drops.items()}
        lost = PAIRS[self.subscribers.index(transport)]
        assert drops == {(name, "disconnected"): 1 for name in lost}

    def test_many_who_join_while_audiences_are_made(self) -> None:
        self.begin()
        joining = [self.subscriber("abc") for _ in range(100)]
        self.publish()
        self.settle()
        assert {each.data for each in joining} == {lines("a2", "b2", "c2")}

    def test_a_subscriber_that_is_evicted_by_what_it_gets(self) -> None:
        self.made()
        slow = self.subscribers[9].outbox
        assert slow is not None
        slow.pause()
        slow.policy = SlowPolicy("disconnect", 10)
        self.publish("." * 20)
        self.publish()
        self.settle()
        assert len(self.bench.closed) == 1
        assert self.served() == self.subscribers[:9]
        assert self.bench.counters.delivered == 20 + 9 * 4

    def test_messages_that_a_subscriber_must_not_get(self) -> None:
        self.publish()
        sender = self.subscribers[0]
        assert sender.outbox is not None
        with self.router.excluding(sender.outbox, self.topics["a"]):
            self.publish_one("a")
        self.settle()
        assert sender.data == lines("a1", "b1")
        assert self.subscribers[1].data == lines("a1", "c1", "a2")

    def test_the_end_of_a_topic(self) -> None:
        self.publish()
        self.bench.turn()
        self.router.end(self.topics["e"])
        self.settle()
        assert self.subscribers[9].data == lines("d1", "e1")

    def test_a_subscriber_without_rights_gets_what_was_published_before(self) -> None:
        def end(*_: object) -> bool:
            assert transport.outbox is not None
            transport.outbox.send(b"ended")
            return False

        transport = self.bench.outbox(recheck=end)
        self.subscribe(transport, "e")
        self.publish()
        self.router.recheck(self.topics["e"])
        self.settle()
        assert transport.data == lines("e1") + b"ended"

    def test_a_subscriber_that_falls_behind(self) -> None:
        self.made()
        slow = self.subscriber("ab", SlowPolicy(AUTO, 10, 1))
        assert slow.outbox is not None
        slow.outbox.pause()
        for _ in range(3):
            self.publish("." * 20)
        self.settle()
        assert slow.outbox.cursor is not None
        assert slow.outbox.subscriptions == {}
        assert dict(slow.outbox.cursor.pending()) == {self.topics["a"]: 3, self.topics["b"]: 3}

    def test_a_subscriber_that_falls_behind_with_a_queue(self) -> None:
        """What waits is handed over meanwhile, and must not take topics out of the queue."""
        self.made()
        slow = self.subscriber("ab", SlowPolicy(AUTO, 400, 1))
        assert slow.outbox is not None
        slow.outbox.pause()
        for _ in range(4):
            self.publish("." * 20)
        self.settle()
        cursor = slow.outbox.cursor
        assert cursor is not None
        assert self.bench.counters.dropped == 0
        for name in "ab":
            assert cursor.position(self.topics[name]) == 10
        assert dict(cursor.pending()) == {self.topics["a"]: 4, self.topics["b"]: 4}


class KeyTests(SlicedCase):
    """A queue key that is rotated while many are subscribed"""

    def setUp(self) -> None:
        super().setUp()
        self.made()
        self.reported: list[Transport] = []

    def member(self, stays: bool, names: str = "a") -> Transport:
        """Return a subscriber that records the replies of rechecks."""

        def recheck(topic: Topic, change: KeyChange | None) -> bool:
            assert transport.outbox is not None
            word = b"" if change is None else change.new
            transport.outbox.send(word + (b" new\n" if stays else b" end\n"))
            self.reported.append(transport)
            return stays

        transport = self.bench.outbox(recheck=recheck)
        self.subscribe(transport, names)
        return transport

    def rotate(self, key: bytes) -> Deferred[tuple[int, int]]:
        return self.router.recheck(self.topics["a"], KeyChange(b"old", key))

    def begin(self, ticks: int = 20) -> None:
        """Have some of the subscribers rechecked."""
        for _ in range(ticks):
            self.bench.turn()
        assert 0 < len(self.reported) < 70

    def test_what_is_published_later_is_for_those_who_stay(self) -> None:
        staying, ending = zip(
            *[(self.member(True), self.member(False)) for _ in range(40)], strict=True
        )
        leaving, dying = staying[38], ending[39]
        self.publish_one("a")
        done = self.rotate(b"k")
        self.publish()
        self.publish_one("a")
        self.begin()
        self.assertNoResult(done)  # type: ignore[no-untyped-call]
        # A subscriber that leaves is notified before, and gets the messages published so far.
        self.unsubscribe(leaving, "a")
        assert leaving.outbox is not None
        leaving.outbox.flush()
        assert leaving.data == b"a2\nk new\na3\na4\n"
        # A subscriber that is gone cannot be notified.
        assert dying.outbox is not None
        dying.outbox.shut("disconnected")
        self.settle()
        assert self.successResultOf(done) == (4 + 40, 39)
        assert len(self.reported) == len(set(map(id, self.reported))) == 79
        for each in staying:
            assert each.data == b"a2\nk new\na3\na4\n"
        for each in ending[:-1]:
            assert each.data == b"a2\nk end\n"
        assert dying.data == b"a2\n"

    def test_few_are_rechecked_at_once(self) -> None:
        assert self.successResultOf(self.rotate(b"k")) == (4, 0)
        assert not self.router.gate.shut

    def test_two_rotations_follow_each_other(self) -> None:
        members = [self.member(True) for _ in range(70)]
        first = self.rotate(b"k")
        self.publish_one("a")
        second = self.rotate(b"l")
        self.publish_one("a")
        self.begin()
        # Joins after both, and is notified of neither.
        joining = self.member(True)
        self.settle()
        assert self.successResultOf(first) == self.successResultOf(second) == (74, 0)
        for each in members:
            assert each.data == b"k new\na2\nl new\na3\n"
        assert joining.data == b""

    def test_a_rotation_waits_for_what_is_routed_in_slices(self) -> None:
        members = [self.member(False, "ab") for _ in range(10)]
        self.settle()
        self.publish()
        done = self.rotate(b"k")
        self.publish()
        self.bench.turn()
        assert not self.reported
        # All earlier messages are for the one that changes first, and no later ones.
        early = members[0]
        self.unsubscribe(early, "b")
        assert early.data == b"a2\nb2\nk end\n"
        self.settle()
        assert self.successResultOf(done) == (4, 10)
        assert early.data == b"a2\nb2\nk end\nb3\n"
        for each in members[1:]:
            assert each.data == early.data

    def test_an_error_ends_one_subscription(self) -> None:
        def fail(topic: Topic, change: KeyChange | None) -> bool:
            raise RuntimeError

        failing = self.bench.outbox(recheck=fail)
        self.subscribe(failing, "a")
        members = [self.member(True) for _ in range(70)]
        done = self.rotate(b"k")
        self.publish_one("a")
        self.settle()
        assert len(self.flushLoggedErrors(RuntimeError)) == 1  # type: ignore[no-untyped-call]
        assert self.successResultOf(done) == (74, 1)
        assert failing.data == b""
        for each in members:
            assert each.data == b"k new\na2\n"

    def test_the_end_of_the_topic_ends_it(self) -> None:
        for _ in range(70):
            self.member(True)
        done = self.rotate(b"k")
        self.begin()
        self.router.end(self.topics["a"])
        self.settle()
        kept, ended = self.successResultOf(done)
        assert (kept, ended) == (74, 0)
        assert not self.topics["a"].subscribers

    def test_a_deletion_tells_those_who_stay(self) -> None:
        ending = [self.member(False) for _ in range(70)]
        done = self.rotate(b"k")
        self.begin()
        for _ in self.router.recheck_each(self.topics["a"]):
            pass
        assert {each.data for each in ending} == {b"k end\n"}
        self.settle()
        assert self.successResultOf(done) == (4, 70)

    def test_one_that_is_evicted_by_its_recheck(self) -> None:
        def leave(topic: Topic, change: KeyChange | None) -> bool:
            assert leaving.outbox is not None
            leaving.outbox.evict("does not read its errors")
            return True

        leaving = self.bench.outbox(recheck=leave)
        self.subscribe(leaving, "ab")
        members = [self.member(True) for _ in range(70)]
        done = self.rotate(b"k")
        self.publish()
        self.settle()
        assert self.successResultOf(done)[1] == 0
        assert leaving.data == b""
        assert {each.data for each in members} == {b"k new\na2\n"}

    def test_what_follows_may_rotate_and_publish(self) -> None:
        members = [self.member(True) for _ in range(70)]
        results: list[tuple[int, int]] = []

        def again(result: tuple[int, int]) -> None:
            self.rotate(b"l").addCallback(results.append)
            self.publish_one("a")

        self.rotate(b"k").addCallback(again)
        self.settle()
        self.settle()
        assert results == [(74, 0)]
        assert {each.data for each in members} == {b"k new\nl new\na2\n"}

    def test_a_broker_that_stops_ends_it(self) -> None:
        members = [self.member(True) for _ in range(70)]
        done = self.rotate(b"k")
        self.publish_one("a")
        self.router.finish()
        assert self.successResultOf(done) == (74, 0)
        assert {each.data for each in members} == {b"k new\na2\n"}
        self.settle()

    def test_it_is_counted_as_memory(self) -> None:
        for _ in range(70):
            self.member(True)
        memory = self.bench.memory
        before = memory.used - memory.cached
        self.rotate(b"k")
        assert memory.used - memory.cached >= before + 74 * 32
        self.settle()
        assert memory.used - memory.cached == before


class BoundTests(SlicedCase):
    """Waiting batches are counted, and have an end"""

    def test_waiting_batches_are_counted_as_memory(self) -> None:
        memory = self.bench.memory
        before = memory.used - memory.cached
        self.publish("." * 1000)
        assert memory.used - memory.cached > before + 5000
        self.settle()
        assert memory.used - memory.cached == before

    def test_waiting_messages_are_counted_that_are_empty(self) -> None:
        memory = self.bench.memory
        before = memory.used - memory.cached
        batch = mixed_batch([(name, b"") for name in self.topics] * 1000, self.mix.names)
        self.router.route_mixed(self.mix, batch)
        assert memory.used - memory.cached > before + 5000 * 12
        self.settle()
        assert memory.used - memory.cached == before

    def test_delivery_goes_on_while_memory_is_full(self) -> None:
        before = self.bench.memory.used
        self.publish("." * 1000)
        self.bench.memory.reconfigure({"max-memory": before + 1000})
        publisher = HeldPublisher()
        self.bench.memory.wait(publisher)
        self.settle()
        assert len(self.served()) == 10
        assert not publisher.held

    def test_a_source_that_cannot_be_held_is_served_at_once(self) -> None:
        self.made()
        self.publish("." * 1000)
        self.bench.turn()
        assert len(self.served()) == 1
        self.patch(sliced_routing, "_LATE_BYTES", 1000)  # type: ignore[no-untyped-call]
        self.publish("." * 1000)
        self.bench.turn()
        assert [each.data.count(b"3.") for each in self.subscribers] == [2] * 10
        self.settle()
        assert not self.router.gate.shut

    def test_the_reads_of_publishers_that_are_held_wait(self) -> None:
        """As many may come in one tick as there are publishers; nothing follows them."""
        self.patch(sliced_routing, "_LATE_BYTES", 1000)  # type: ignore[no-untyped-call]
        self.made()
        publishers = [HeldPublisher() for _ in range(20)]
        for publisher in publishers:
            self.publish("." * 1000)
            self.router.gate.wait(publisher)
        self.bench.turn()
        assert len(self.served()) == 1
        self.settle()
        assert not any(publisher.held for publisher in publishers)
        assert [each.data.count(b".\n") for each in self.subscribers] == [40] * 10

    def test_a_broker_that_stops_delivers_everything(self) -> None:
        self.publish()
        self.bench.turn()
        self.router.finish()
        for names, each in zip(PAIRS, self.subscribers, strict=True):
            assert each.data == lines(*[f"{name}1" for name in names])
        self.settle()
        assert self.bench.counters.delivered == 20
