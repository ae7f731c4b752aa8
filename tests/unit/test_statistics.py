"""The figures of a broker: the counts, their places, and the snapshot."""

from __future__ import annotations

import gc
import json
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import AUTO, DISCONNECT, DROP, SlowPolicy
from pubsub.broker.figures.connection_figures import CATCHING_UP, LEAVING, LIVE, PAUSED
from pubsub.broker.figures.histogram import BOUNDS, Histogram
from pubsub.broker.figures.process_memory import resident_bytes
from pubsub.broker.figures.process_pauses import CollectorPauses, ReactorLag, Worst
from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.broker.service import BrokerService
from pubsub.broker.topic_space.topics import Topic
from pubsub.kernel import Columns
from tests.unit import cafe_wire, nsd_lines, rheos_wire
from tests.unit.fakes import Bench, Lines, Reader, Transport, batch_of, clock_at, make_broker
from tests.unit.logs import StoreCase
from tests.unit.streams import Client, House


def publisher_and_subscriber(house: House) -> tuple[Client, Client]:
    """Return clients of channel 7 whose handshakes are acknowledged."""
    return (
        cafe_wire.handshaken(house, cafe_wire.hs_pub(7, b"alice")),
        cafe_wire.handshaken(house, cafe_wire.hs_sub(b"\x07", b"bob")),
    )


class HistogramTests(SynchronousTestCase):
    """Histogram"""

    def test_a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed(self) -> None:
        histogram = Histogram()
        for seconds in (0.0, BOUNDS[0], BOUNDS[1], BOUNDS[-1], BOUNDS[-1] + 1):
            histogram.observe(seconds)
        assert histogram.counts[:2] == [2, 1]
        assert histogram.counts[-2:] == [1, 1]
        assert histogram.count == 5
        assert round(histogram.total, 6) == BOUNDS[0] + BOUNDS[1] + 2 * BOUNDS[-1] + 1

    def test_a_quantile_is_interpolated_within_its_bucket(self) -> None:
        histogram = Histogram()
        for _ in range(100):
            histogram.observe(0.004)
        assert histogram.quantile(0.5) == 0.0025 + (0.005 - 0.0025) * 0.5
        histogram.observe(100)
        assert histogram.quantile(1.0) == BOUNDS[-1]

    def test_a_quantile_is_of_the_last_minute(self) -> None:
        histogram = Histogram()
        assert histogram.quantile(0.99) == 0
        histogram.observe(0.004)
        for _ in range(59):
            histogram.second_passed()
        assert histogram.quantile(0.99) > 0
        for _ in range(11):
            histogram.second_passed()
        assert histogram.quantile(0.99) == 0
        assert histogram.count == 1


class PauseTests(SynchronousTestCase):
    """Worst, ReactorLag, CollectorPauses"""

    def test_the_worst_value_is_that_of_the_last_second_and_of_this_one(self) -> None:
        worst = Worst()
        worst.add(0.2)
        worst.add(0.1)
        worst.second_passed()
        worst.add(0.05)
        assert worst.worst == 0.2
        worst.second_passed()
        assert worst.worst == 0.05
        assert (worst.count, round(worst.total, 6)) == (3, 0.35)

    def test_the_lag_is_the_time_by_which_a_timer_is_late(self) -> None:
        clock = clock_at(0)
        measured: list[float] = []
        lag = ReactorLag(clock, lambda: measured.append(clock.seconds()))
        lag.start()
        clock.advance(0.1)
        assert lag.lag.worst < 0.001
        clock.advance(0.35)
        assert round(lag.lag.worst, 6) == 0.25
        assert [round(at, 6) for at in measured] == [0.1, 0.45]
        lag.stop()
        assert not clock.getDelayedCalls()
        lag.stop()

    def test_the_pauses_of_the_collector_are_measured(self) -> None:
        times = iter(range(1000))
        pauses = CollectorPauses(lambda: float(next(times)))
        gc.collect(0)
        before = list(gc.callbacks)
        pauses.start()
        pauses.start()
        assert len(gc.callbacks) == len(before) + 1
        gc.collect(0)
        pauses.stop()
        pauses.stop()
        assert pauses.pauses.count >= 1
        assert pauses.pauses.worst == 1
        assert gc.callbacks == before

    def test_a_broker_that_was_never_stopped_is_not_kept(self) -> None:
        pauses = CollectorPauses(lambda: 0.0)
        pauses.start()
        (*_, callback) = gc.callbacks
        del pauses
        assert callback not in gc.callbacks


class OutboxCase(SynchronousTestCase):
    """A router with outboxes of one protocol."""

    def setUp(self) -> None:
        self.bench = Bench()
        self.topic = self.bench.topics.create("t")
        self.traffic = self.bench.counters.traffic["toy"]

    def subscriber(self, *topics: Topic, policy: SlowPolicy | None = None) -> Transport:
        transport = self.bench.outbox(policy)
        for topic in topics or (self.topic,):
            self.bench.router.subscribe(box_of(transport), topic, Lines())
        return transport

    def publish(self, *payloads: bytes, topic: Topic | None = None) -> None:
        target = topic or self.topic
        batch = batch_of(payloads, target.name)
        if target.durability:
            self.bench.store.append(batch)
        self.bench.router.route(target, batch)

    def assert_all_counted(self, *transports: Transport) -> None:
        """Every message that a transport has is counted once, for its outbox and protocol."""
        for transport in transports:
            box = box_of(transport)
            assert box.written == (transport.data.count(b"\n"), len(transport.data))
        assert self.traffic.written.messages == sum(box_of(t).written[0] for t in transports)
        assert self.traffic.written.nbytes == sum(box_of(t).written[1] for t in transports)


class DeliveryTests(OutboxCase):
    """Messages written to subscribers"""

    def test_messages_of_one_audience_are_counted_when_they_are_written(self) -> None:
        both = self.subscriber(), self.subscriber()
        self.publish(b"a", b"bc")
        self.publish(b"d")
        assert self.traffic.written.messages == 0
        self.bench.turn()
        self.assert_all_counted(*both)
        assert self.traffic.written.messages == 6

    def test_messages_of_several_audiences_are_counted_when_they_are_flushed(self) -> None:
        other = Topic("u")
        one, two = self.subscriber(), self.subscriber(self.topic, other)
        self.publish(b"a", b"bc")
        self.publish(b"d", topic=other)
        self.bench.turn()
        self.assert_all_counted(one, two)
        assert self.traffic.written.messages == 5

    def test_queued_messages_are_counted_when_they_are_sent(self) -> None:
        slow, fast = self.subscriber(policy=SlowPolicy(DROP)), self.subscriber()
        box_of(slow).pause()
        self.publish(b"a")
        self.bench.turn()
        assert box_of(slow).written == (0, 0)
        self.assert_all_counted(slow, fast)
        slow.drain()
        self.assert_all_counted(slow, fast)
        assert self.traffic.written.messages == 2

    def test_dropped_messages_are_not_counted_as_sent(self) -> None:
        slow = self.subscriber(policy=SlowPolicy(DROP, 3))
        box_of(slow).pause()
        self.publish(b"a", b"b")
        self.bench.turn()
        slow.drain()
        self.assert_all_counted(slow)
        assert self.traffic.written.messages == 0
        assert self.traffic.dropped == 2
        assert self.bench.counters.drop_reasons == {"slow-consumer": 2}

    def test_messages_from_the_history_are_counted(self) -> None:
        slow = self.subscriber(policy=SlowPolicy(AUTO, 16))
        box_of(slow).pause()
        for _ in range(5):
            self.publish(b"abcdef")
            self.bench.turn()
        assert (self.bench.cursors.number, self.bench.cursors.distance) == (1, 5)
        assert box_of(slow).behind == 5
        slow.drain()
        for _ in range(5):
            self.bench.turn()
        assert slow.data.count(b"\n") == 5
        self.assert_all_counted(slow)
        assert (self.bench.cursors.number, self.bench.cursors.distance) == (0, 0)
        assert self.bench.cursors.places == 0

    def test_an_outbox_that_is_shut_behind_leaves_no_place(self) -> None:
        slow = self.subscriber(policy=SlowPolicy(AUTO, 16))
        box_of(slow).pause()
        self.publish(b"abcdef")
        self.bench.turn()
        box_of(slow).shut("disconnected")
        assert (self.bench.cursors.number, self.bench.cursors.places) == (0, 0)
        assert self.traffic.dropped == 1

    def test_subscriptions_are_counted_live_and_behind(self) -> None:
        router, other = self.bench.router, Topic("u")
        one = self.subscriber(self.topic, other, policy=SlowPolicy(AUTO, 16))
        two = self.subscriber()
        router.subscribe(box_of(two), self.topic, Lines())
        assert router.subscriptions == 3
        box_of(one).pause()
        self.publish(b"abcdef")
        self.bench.turn()
        assert box_of(one).is_behind(self.topic)
        assert router.subscriptions == 3
        assert box_of(one).subscription_count == 2
        with router.excluding(box_of(two), self.topic):
            assert router.subscriptions == 3
        router.unsubscribe(box_of(one), self.topic)
        assert router.subscriptions == 2
        box_of(one).shut("disconnected")
        box_of(two).shut("disconnected")
        assert router.subscriptions == 0

    def test_subscriptions_that_end_in_slices_are_counted(self) -> None:
        topics = [Topic(f"t{number}") for number in range(100)]
        box = box_of(self.subscriber(*topics))
        assert self.bench.router.subscriptions == 100
        box.shut("disconnected")
        for _ in range(10):
            self.bench.turn()
        assert self.bench.router.subscriptions == 0


class FlushTimeTests(OutboxCase):
    """Router.flush_times"""

    def test_it_is_the_time_from_the_first_message_of_a_tick_to_its_end(self) -> None:
        self.subscriber()
        self.bench.router.time_flushes()
        self.publish(b"a")
        self.bench.clock.rightNow += 0.003
        self.publish(b"b")
        self.bench.turn()
        times = self.bench.router.flush_times
        assert (times.count, round(times.total, 6)) == (1, 0.003)

    def test_some_flushes_are_timed_after_each_measurement_of_the_lag(self) -> None:
        self.subscriber()
        for count in (0, 10, 20):
            for _ in range(15):
                self.publish(b"a")
                self.bench.turn()
            assert self.bench.router.flush_times.count == count
            self.bench.router.time_flushes()


class SnapshotTests(SynchronousTestCase):
    """Statistics.snapshot"""

    def setUp(self) -> None:
        self.house = House({"cafe": {}, "rheos": {}, "nsd": {}})
        self.broker = self.house.broker
        self.broker.startService()
        self.addCleanup(self.broker.stopService)

    def snapshot(self) -> dict[str, Any]:
        found = self.broker.statistics.snapshot()
        assert json.loads(json.dumps(found)) == found
        return found

    def test_messages_are_counted_by_protocol(self) -> None:
        self.house.broker.router.time_flushes()
        alice, bob = publisher_and_subscriber(self.house)
        alice.send(cafe_wire.publish(7, b"12345", b"678"))
        sent = bob.take()
        found = self.snapshot()
        assert sorted(found["protocols"]) == ["cafe", "nsd", "rheos"]
        cafe = found["protocols"]["cafe"]
        assert cafe == {
            "connections": 2,
            "sessions": 2,
            "messages_in": 2,
            "bytes_in": 8,
            "messages_out": 2,
            "bytes_out": len(sent),
            "dropped": 0,
            "refused": 0,
        }
        assert found["subscriptions"] == 1
        assert found["latency"]["flush"]["count"] == 1
        assert found["store"]["next_offset"] == 2

    def test_responses_of_nsd_are_counted(self) -> None:
        ada = self.house.connect("nsd")
        ada.send(nsd_lines.open_("c") + nsd_lines.publish("c", "hello"))
        ada.send(nsd_lines.open_("ada") + nsd_lines.subscribe("ada", "c"))
        ada.take()
        ada.send(nsd_lines.get("ada"))
        self.house.pump()
        nsd = self.snapshot()["protocols"]["nsd"]
        assert (nsd["messages_in"], nsd["messages_out"]) == (1, 1)
        assert 0 < nsd["bytes_out"] <= len(ada.take())
        assert ada.protocol.figures().messages_out == 1

    def test_refusals_are_counted_by_protocol_and_reason(self) -> None:
        self.house.connect("cafe").send(b"what is this")
        found = self.snapshot()
        (key,) = found["refusals"]
        protocol, _, reason = key.partition(" ")
        assert protocol == "cafe"
        assert reason
        assert found["protocols"]["cafe"]["refused"] == 1

    def test_the_refusals_of_the_http_api_are_those_of_http(self) -> None:
        listener = self.house.listeners["nsd"]
        listener.event_protocol = "http"
        listener.refuse("not-found", "bob")
        found = self.snapshot()
        assert found["refusals"] == {"http not-found": 1}
        assert found["protocols"]["http"]["refused"] == 1

    def test_rejected_tokens_are_refusals(self) -> None:
        self.house.listeners["nsd"].refuse("bad-token", "bob", 3)
        assert self.snapshot()["tokens"] == {"known": 0, "verified": 0, "rejected": 3}

    def test_memory_is_divided_among_accounts(self) -> None:
        before = self.snapshot()["memory"]["accounts"]
        self.house.connect("rheos").send(rheos_wire.create(rheos_wire.ALICE))
        cafe = self.house.connect("cafe")
        cafe.send(cafe_wire.hs_pub(7, b"alice"))
        cafe.send(cafe_wire.publish(7, bytes(10_000))[:8000])
        memory = self.snapshot()["memory"]
        assert sum(memory["accounts"].values()) == memory["used"]
        assert memory["accounts"]["connections"] - before["connections"] == 2 * CONNECTION_BYTES
        assert memory["accounts"]["input"] >= 8000
        assert memory["accounts"]["sessions"] > 0
        assert memory["accounts"]["history"] == self.broker.memory.aside
        assert memory["accounts"]["other"] >= 0
        assert memory["process"] == resident_bytes() or memory["process"] > 0

    def test_slow_subscribers_are_counted(self) -> None:
        alice, bob = publisher_and_subscriber(self.house)
        bob.stream.stop_reading()
        for _ in range(3):
            alice.send(cafe_wire.publish(7, bytes(60_000)))
        slow = self.snapshot()["slow"]
        assert (slow["paused"], slow["catching_up"]) == (1, 0)
        assert slow["queued_bytes"] > 60_000
        figures = bob.protocol.figures()
        assert (figures.state, figures.queued_bytes) == (PAUSED, slow["queued_bytes"])

    def test_evictions_are_counted_by_the_beginning_of_their_reason(self) -> None:
        listener = self.house.listeners["cafe"]
        for nbytes in (1, 2):
            listener.evicted(f"slow consumer: over {nbytes} bytes behind", "bob")
        listener.evicted("memory bound", "bob")
        assert self.snapshot()["evictions"] == {"slow-consumer": 2, "memory-bound": 1}

    def test_the_reasons_of_evictions_are_bounded(self) -> None:
        for number in range(100):
            self.broker.counters.evict(f"reason {number}")
        found = self.snapshot()["evictions"]
        assert len(found) == 51
        assert found["*"] == 50

    def test_a_history_in_memory_has_no_disk(self) -> None:
        store = self.snapshot()["store"]
        assert sorted(store) == ["bytes", "committed", "durable", "first_offset", "next_offset"]

    def test_each_second_is_marked(self) -> None:
        calls: list[int] = []

        def fail() -> None:
            raise ValueError

        statistics = self.broker.statistics
        statistics.each_second += [fail, lambda: calls.append(1)]
        self.house.advance(3)
        assert calls == [1, 1, 1]
        assert len(self.flushLoggedErrors(ValueError)) == 3  # type: ignore[no-untyped-call]
        assert round(self.snapshot()["uptime"]) == 3


class DurableSnapshotTests(StoreCase):
    """The figures of a history on disk"""

    def test_commits_and_the_disk(self) -> Deferred[None]:
        return ensureDeferred(self._commit())

    async def _commit(self) -> None:
        broker = make_broker(store=self.store)
        topic = broker.topics.create("t")
        broker.dispatcher.publish(topic, Columns.of([b"abc"]), b"alice", "toy")
        assert await self.stored()
        figures = broker.statistics.snapshot()
        store = figures["store"]
        assert store["durable"] is True
        assert store["commits"] >= 1
        assert (store["committed"], store["failures"]) == (1, 0)
        assert store["segments"] >= 1
        assert store["bytes"] > 0
        assert store["index_bytes"] >= 0
        assert store["metadata_bytes"] > 0
        assert store["disk_free"] > 0
        assert store["seconds_since_commit"] >= 0
        assert figures["latency"]["commit"]["count"] == 1
        assert figures["latency"]["sync"]["count"] == 1


class FigureTests(SynchronousTestCase):
    """The figures of one connection"""

    def setUp(self) -> None:
        self.house = House({"cafe": {"slow-consumer": AUTO}})

    def test_of_a_publisher_and_a_subscriber(self) -> None:
        alice, bob = publisher_and_subscriber(self.house)
        alice.send(cafe_wire.publish(7, b"12345", b"678"))
        sent, received = alice.protocol.figures(), bob.protocol.figures()
        assert (sent.messages_in, sent.bytes_in, sent.messages_out) == (2, 8, 0)
        assert (received.messages_out, received.bytes_out) == (2, len(bob.take()))
        assert (received.subscriptions, received.state, received.behind) == (1, LIVE, 0)
        bob.stream.lose()
        assert bob.protocol.figures().state == LEAVING

    def test_of_a_subscriber_that_is_behind(self) -> None:
        broker = self.house.broker
        box = outbox_behind(broker)
        assert box.cursor is not None
        alice = self.house.connect("cafe")
        alice.protocol.outbox = box
        figures = alice.protocol.figures()
        assert (figures.state, figures.behind, figures.subscriptions) == (CATCHING_UP, 1, 1)


def box_of(transport: Transport) -> Outbox:
    assert transport.outbox is not None
    return transport.outbox


def outbox_behind(broker: BrokerService) -> Outbox:
    """Return an outbox that one message in the history waits for."""
    topic = broker.topics.create("t")
    policy = SlowPolicy(DISCONNECT)
    traffic = broker.counters.traffic["toy"]
    box = Outbox(broker.cursors, Transport(), policy, Reader(), traffic)
    box.pause()
    start = broker.store.next_offset
    broker.dispatcher.publish(topic, Columns.of([b"a"]), b"alice", "toy")
    broker.router.subscribe(box, topic, Lines(), start)
    return box
