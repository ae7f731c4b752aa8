"""The messages that outboxes and protocols write are counted exactly, on every path."""

from __future__ import annotations

from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import AUTO, DISCONNECT, DROP, SlowPolicy
from pubsub.broker.delivery.start_positions import offset_of
from tests.unit.fakes import Bench, Lines, Transport, batch_of, mixed_batch


class WrittenTests(SynchronousTestCase):
    """The figures of outboxes, compared with what their transports have after each step"""

    def setUp(self) -> None:
        self.bench = Bench()
        self.topics = {name: self.bench.topics.create(name) for name in "ab"}
        self.transports: list[Transport] = []

    def subscriber(
        self, names: str = "a", policy: SlowPolicy | None = None, offset: int | None = None
    ) -> Transport:
        transport = self.bench.outbox(policy)
        self.transports.append(transport)
        for name in names:
            self.bench.router.subscribe(box_of(transport), self.topics[name], Lines(), offset)
        return transport

    def publish(self, *payloads: bytes, name: str = "a") -> None:
        batch = batch_of(payloads, name)
        self.bench.store.append(batch)
        self.bench.router.route(self.topics[name], batch)
        self.check()

    def publish_mixed(self, *sent: tuple[str, bytes]) -> None:
        mix = self.bench.router.mix(self.topics[name] for name in {name for name, _ in sent})
        batch = mixed_batch(sent, mix.names)
        self.bench.store.append(batch)
        self.bench.router.route_mixed(mix, batch)
        self.check()

    def turn(self) -> None:
        self.bench.turn()
        self.check()

    def check(self) -> None:
        messages = nbytes = 0
        for transport in self.transports:
            written = transport.data.count(b"\n"), len(transport.data)
            assert box_of(transport).written == written
            messages, nbytes = messages + written[0], nbytes + written[1]
        total = self.bench.counters.traffic["toy"].written
        assert (total.messages, total.nbytes) == (messages, nbytes)

    def written(self, *transports: Transport) -> list[int]:
        return [box_of(transport).written[0] for transport in transports]

    def test_of_a_slow_one_among_others(self) -> None:
        one, slow, other = self.subscriber(), self.subscriber(), self.subscriber()
        box_of(slow).pause()
        self.publish(b"a", b"bc")
        self.turn()
        assert self.written(one, slow, other) == [2, 0, 2]
        slow.drain()
        self.check()
        assert self.written(slow) == [2]

    def test_of_the_same_ones_in_several_ticks(self) -> None:
        both = self.subscriber(), self.subscriber()
        for payload in (b"a", b"bc", b"def"):
            self.publish(payload)
            self.bench.turn()
        assert self.written(*both) == [3, 3]
        self.check()

    def test_no_audience_is_kept_for_longer_than_a_second(self) -> None:
        self.subscriber()
        unsettled = self.bench.counters.traffic.unsettled
        self.publish_quietly(b"a")
        assert unsettled._audiences
        self.bench.router.mark_second()
        assert not unsettled._audiences
        self.check()

    def test_of_outboxes_that_come_and_go_between_ticks(self) -> None:
        first = self.subscriber()
        self.publish_quietly(b"a")
        second = self.subscriber()
        self.publish_quietly(b"bc")
        box_of(first).shut("disconnected")
        self.publish_quietly(b"def")
        self.check()
        assert self.written(first, second) == [2, 2]

    def test_a_flush_to_an_audience_without_outboxes(self) -> None:
        only = self.subscriber()
        topic = self.topics["a"]
        with self.bench.router.excluding(box_of(only), topic):
            self.publish(b"a")
            self.bench.router.flush()
        self.publish(b"bc")
        self.turn()
        self.bench.router.mark_second()
        self.check()
        assert self.written(only) == [1]

    def test_of_many_topics_before_the_figures_are_read(self) -> None:
        names = [f"t{number}" for number in range(600)]
        self.topics |= {name: self.bench.topics.create(name) for name in names}
        transports = []
        for name in names:
            transports.append(self.bench.outbox(None))
            self.bench.router.subscribe(box_of(transports[-1]), self.topics[name], Lines(), None)
        self.transports += transports
        for name in (*names, *names[:9]):
            self.publish_quietly(b"a", name=name)
        self.check()
        assert self.written(*transports) == [2] * 9 + [1] * 591

    def publish_quietly(self, *payloads: bytes, name: str = "a") -> None:
        """Publish in a tick of its own, without settling by reading the figures."""
        batch = batch_of(payloads, name)
        self.bench.store.append(batch)
        self.bench.router.route(self.topics[name], batch)
        self.bench.turn()

    def test_of_one_that_a_write_pauses(self) -> None:
        slow, other = self.subscriber(), self.subscriber()
        slow.room = 1
        for _ in range(3):
            self.publish(bytes(200_000))
        self.turn()
        assert self.written(slow, other) == [2, 3]
        slow.drain()
        self.check()
        assert self.written(slow) == [3]

    def test_of_one_that_loses_messages(self) -> None:
        slow, other = self.subscriber(policy=SlowPolicy(DROP, 3)), self.subscriber()
        box_of(slow).pause()
        self.publish(b"a", b"b")
        self.turn()
        slow.drain()
        self.check()
        assert self.written(slow, other) == [0, 2]

    def test_of_one_that_is_evicted_in_the_flush(self) -> None:
        first, slow = self.subscriber(), self.subscriber(policy=SlowPolicy(DISCONNECT, 3))
        last = self.subscriber()
        box_of(slow).pause()
        self.publish(b"abcdef")
        self.turn()
        assert box_of(slow).closed
        self.publish(b"abcdef")
        self.turn()
        assert self.written(first, slow, last) == [2, 0, 2]

    def test_of_one_that_is_shut_in_a_write_before_its_turn(self) -> None:
        first, victim = self.subscriber(), self.subscriber()

        def write(data: bytes) -> None:
            first.writes.append(data)
            box_of(victim).shut("disconnected")

        with patch.object(first, "write", write):
            self.publish(b"abcdef")
            self.turn()
        assert box_of(victim).closed
        assert self.written(first, victim) == [1, 0]

    def test_of_one_that_falls_behind_and_catches_up(self) -> None:
        slow, other = self.subscriber(policy=SlowPolicy(AUTO, 16)), self.subscriber()
        box_of(slow).pause()
        for _ in range(5):
            self.publish(b"abcdef")
            self.turn()
        assert box_of(slow).behind == 5
        slow.drain()
        for _ in range(5):
            self.turn()
        self.publish(b"g")
        self.turn()
        assert self.written(slow, other) == [6, 6]

    def test_of_one_that_resumes(self) -> None:
        gone, other = self.subscriber(), self.subscriber()
        self.publish(b"a")
        self.turn()
        offsets = box_of(gone).shut_and_get_offsets()
        self.publish(b"b")
        self.turn()
        resumed = self.subscriber(offset=offset_of(offsets[self.topics["a"]]))
        for _ in range(5):
            self.turn()
        self.publish(b"c")
        self.turn()
        assert self.written(gone, resumed, other) == [1, 2, 3]

    def test_of_several_audiences(self) -> None:
        one, both = self.subscriber("a"), self.subscriber("ab")
        self.publish(b"a")
        self.publish(b"b", name="b")
        self.turn()
        self.publish_mixed(("a", b"c"), ("b", b"d"), ("a", b"e"))
        self.turn()
        self.publish(b"f")
        self.turn()
        assert self.written(one, both) == [4, 6]
        self.bench.router.unsubscribe(box_of(both), self.topics["a"])
        self.publish_mixed(("a", b"c"), ("b", b"d"))
        self.turn()
        assert self.written(one, both) == [5, 7]

    def test_of_one_whose_subscriptions_change(self) -> None:
        one, other = self.subscriber(), self.subscriber()
        router, topic = self.bench.router, self.topics["a"]
        self.publish(b"a")
        with router.excluding(box_of(one), topic):
            self.publish(b"bc")
        self.publish(b"d")
        self.turn()
        assert self.written(one, other) == [2, 3]
        router.unsubscribe(box_of(one), topic)
        self.publish(b"e")
        self.turn()
        router.subscribe(box_of(one), topic, Lines())
        self.publish(b"f")
        self.turn()
        assert self.written(one, other) == [3, 5]

    def test_of_very_many(self) -> None:
        # More than are written to in one tick.
        many = [self.subscriber() for _ in range(301)]
        self.publish(b"a")
        self.turn()
        assert self.written(*many) == [1] * len(many)


def box_of(transport: Transport) -> Outbox:
    assert transport.outbox is not None
    return transport.outbox
