"""Routing in slices: batches for many audiences, and what happens before all are encoded."""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker import router as router_module
from pubsub.broker import sliced_routing, topic_mix
from pubsub.broker.slow_policy import AUTO, SlowPolicy
from pubsub.broker.topics import Topic
from tests.unit.fakes import Bench, Lines, Transport, batch_of, mixed_batch

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


class SteppedBench(Bench):
    """A bench that leaves what is begun at the end of a tick to the next one, as a reactor does."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        super().__init__()

    def _at_turn_end(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)

    def turn(self) -> None:
        """End the reactor tick."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
        super().turn()


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
        self.patch(topic_mix, "_MAKING", 0)  # type: ignore[no-untyped-call]
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
        assert dict(slow.outbox.cursor.owed()) == {self.topics["a"]: 3, self.topics["b"]: 3}


class BoundTests(SlicedCase):
    """What waits is counted, and has an end"""

    def test_waiting_batches_are_counted_as_memory(self) -> None:
        memory = self.bench.memory
        self.publish("." * 1000)
        assert memory.used - memory.cached > 5000
        self.settle()
        assert memory.used == memory.cached

    def test_delivery_goes_on_while_memory_is_full(self) -> None:
        self.publish("." * 1000)
        self.bench.memory.reconfigure({"max-memory": 1000})
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

    def test_a_broker_that_stops_delivers_everything(self) -> None:
        self.publish()
        self.bench.turn()
        self.router.finish()
        for names, each in zip(PAIRS, self.subscribers, strict=True):
            assert each.data == lines(*[f"{name}1" for name in names])
        self.settle()
        assert self.bench.counters.delivered == 20
