"""BrokerService and its parts: publishing, time, ids, shutdown, housekeeping."""

from __future__ import annotations

import sys
from collections.abc import Callable
from unittest.mock import Mock

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.subscription_account import GROUP_BYTES, LIVE_BYTES
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.routing.batch import message_id
from pubsub.broker.service import BrokerService
from pubsub.broker.topic_space.topic_registry import TOPIC_BYTES
from pubsub.broker.topic_space.topics import Topic
from pubsub.kernel import Columns
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import (
    START,
    Big,
    Guest,
    Held,
    Lines,
    Owner,
    Reader,
    Ruled,
    Transport,
    clock_at,
    drawing,
    make_broker,
    recheck_all,
)
from tests.unit.fakes import make_listener as listener_of


class ServiceCase(SynchronousTestCase):
    """A broker whose clock the test advances."""

    limits = BrokerLimits(max_memory=100_000, memory_seconds=5, stop_seconds=10)

    def setUp(self) -> None:
        self.clock = clock_at()
        self.broker = make_broker(self.clock, self.limits)

    def subscriber(self, broker: BrokerService, name: str) -> Transport:
        transport = Transport()
        traffic = broker.counters.traffic["toy"]
        box = Outbox(broker.cursors, transport, listener_of(broker).slow, Reader(), traffic)
        transport.outbox = box
        broker.router.subscribe(box, broker.topics.create(name), Lines())
        return transport

    def publish(self, name: str, *payloads: bytes) -> int:
        """Publish; return the sequence of the batch."""
        publisher = listener_of(self.broker).publisher(None, b"alice")
        topic = self.broker.topics.create(name)
        return publisher.publish(topic, Columns.of(list(payloads))).sequence


class PublishTests(ServiceCase):
    """publish"""

    def test_messages_reach_history_and_subscribers(self) -> None:
        bob = self.subscriber(self.broker, "news")
        self.publish("news", b"a", b"b")
        self.publish("other", b"c")
        self.clock.advance(0)
        assert bob.writes == [b"a\nb\n"]
        page = self.successResultOf(self.broker.store.read(0, None, 1000))
        assert [batch.payloads() for batch in page.batches] == [[b"a", b"b"], [b"c"]]

    def test_the_sequence_counts_messages_and_offsets_are_those_of_the_store(self) -> None:
        assert self.publish("a", b"1", b"2") == 0
        assert self.publish("b", b"3") == 2
        assert self.publish("a", b"4") == 3
        assert self.broker.store.next_offset == 4

    def test_the_sequence_does_not_depend_on_the_history(self) -> None:
        self.broker = make_broker(self.clock, store=MemoryStore(0, 0))
        assert self.publish("a", b"1", b"2") == 0
        assert self.publish("a", b"3") == 2


class TopicTests(ServiceCase):
    """end, recheck, shared"""

    def test_an_ended_topic_loses_its_subscriptions_and_key(self) -> None:
        bob = self.subscriber(self.broker, "news")
        topic = self.broker.topics.named("news")
        self.publish("news", b"before")
        self.broker.queue_keys.close(topic, b"key", "ada", "client")
        used = self.broker.memory.used
        self.broker.topic_lifecycle.end(topic)
        assert bob.data == b"before\n"
        assert bob.outbox is not None
        assert not bob.outbox.subscriptions
        assert "news" not in self.broker.topics
        assert not self.broker.queue_keys.names
        freed = TOPIC_BYTES + GROUP_BYTES + LIVE_BYTES
        assert self.broker.memory.used == used - freed
        self.broker.topic_lifecycle.end(topic)
        assert self.broker.memory.used == used - freed

    def test_a_new_topic_of_the_same_name_is_distinct(self) -> None:
        bob = self.subscriber(self.broker, "news")
        self.broker.topic_lifecycle.end(self.broker.topics.named("news"))
        eve = self.subscriber(self.broker, "news")
        self.publish("news", b"new")
        self.clock.advance(0)
        assert (bob.data, eve.data) == (b"", b"new\n")

    def test_publishers_waiting_for_an_ended_topic_are_released(self) -> None:
        topic, publisher = self.broker.topics.create("news"), Held()
        topic.block(object())
        topic.wait(publisher)
        self.broker.topic_lifecycle.end(topic)
        assert publisher.reasons == set()
        assert not topic.blockers

    def test_every_topic_is_rechecked(self) -> None:
        listener = listener_of(self.broker)
        for names in (("a", "b"), ("b", "c"), ()):
            box = listener.outbox(Transport(), Ruled(listener))
            for name in names:
                self.broker.router.subscribe(box, self.broker.topics.create(name), Lines())
        assert recheck_all(self.broker.router, self.broker.topics) == (4, 0)
        listener.reconfigure({**listener.settings, "allow-subscribe": ("a", "c")})
        assert recheck_all(self.broker.router, self.broker.topics) == (2, 2)
        assert recheck_all(self.broker.router, self.broker.topics) == (2, 0)
        assert [t.name for t in self.broker.topics if t.groups] == ["a", "c"]

    def test_many_subscriptions_are_rechecked_in_slices(self) -> None:
        listener = listener_of(self.broker)
        self.broker.add_listener(listener)
        boxes = [listener.outbox(Transport(), Ruled(listener)) for _ in range(500)]
        topic = self.broker.topics.create("a")
        for box in boxes:
            self.broker.router.subscribe(box, topic, Lines())
        settings = {**listener.settings, "allow-subscribe": ()}
        rechecked = self.broker.reconfigure(
            SecretRing(), {(listener.protocol, listener.endpoint): settings}
        )
        assert not listener.access.may_subscribe("a")
        self.assertNoResult(rechecked)  # type: ignore[no-untyped-call]
        assert 0 < sum(map(len, topic.groups.values())) < 500
        self.clock.advance(0)
        assert self.successResultOf(rechecked) == (0, 500)
        assert not topic.groups

    def test_a_shared_object_is_made_once(self) -> None:
        listener = listener_of(self.broker)
        made = [listener.shared(key, lambda: object()) for key in ("a", "b", "a")]
        assert made[0] is made[2]
        assert made[0] is not made[1]
        assert listener.shared("none", lambda: None) is None


class IdTests(ServiceCase):
    """run_id and message_id"""

    def test_the_run_id_has_60_random_bits(self) -> None:
        asked: list[int] = []

        def draw(bits: int) -> int:
            asked.append(bits)
            return 7

        assert make_broker(draw=draw).dispatcher.run_id == 7
        assert asked == [60]

    def test_session_ids_have_64_random_bits(self) -> None:
        broker = make_broker(draw=drawing(1, 2**64 - 1))
        assert broker.sessions.open("kind", b"", Owner()).id == 2**64 - 1

    @given(st.integers(0, 2**60 - 1), st.integers(0, 2**62 - 1))
    @example(0, 0)
    @example(2**60 - 1, 2**62 - 1)
    def test_a_message_id_is_a_uuid_of_version_8(self, run: int, sequence: int) -> None:
        uuid = message_id(run, sequence)
        assert uuid.version == 8
        assert uuid.variant == "specified in RFC 4122"

    @given(
        st.tuples(st.integers(0, 2**60 - 1), st.integers(0, 2**62 - 1)),
        st.tuples(st.integers(0, 2**60 - 1), st.integers(0, 2**62 - 1)),
    )
    @example((0, 2**62 - 1), (1, 0))
    @example((1, 0), (0, 1))
    def test_ids_are_equal_only_for_the_same_run_and_sequence(
        self, one: tuple[int, int], other: tuple[int, int]
    ) -> None:
        assert (message_id(*one) == message_id(*other)) == (one == other)

    @given(st.integers(0, 59), st.integers(0, 61))
    def test_a_message_id_depends_on_every_bit_of_run_and_sequence(
        self, run_bit: int, sequence_bit: int
    ) -> None:
        base = message_id(0, 0).int
        for changed in (message_id(1 << run_bit, 0), message_id(0, 1 << sequence_bit)):
            assert (changed.int ^ base).bit_count() == 1


class StopTests(ServiceCase):
    """stopService"""

    def stop(self) -> Deferred[None]:
        self.broker.startService()
        return self.broker.stopService()

    def test_without_clients_it_stops_at_once(self) -> None:
        self.successResultOf(self.stop())
        assert not self.clock.getDelayedCalls()

    def test_clients_are_drained_and_waited_for(self) -> None:
        willing, stubborn = Guest(self.broker), Guest(self.broker, stubborn=True)
        stopped = self.stop()
        assert willing.calls == ["drain"]
        assert stubborn.calls == ["drain"]
        self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
        self.broker.clients.discard(stubborn)
        self.successResultOf(stopped)
        assert not self.clock.getDelayedCalls()

    def test_a_client_with_a_defect_does_not_cut_the_others_off(self) -> None:
        broken, willing = Guest(self.broker), Guest(self.broker)
        self.patch(broken, "drain", lambda: 1 / 0)  # type: ignore[no-untyped-call]
        stopped = self.stop()
        assert willing.calls == ["drain"]
        self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
        self.clock.advance(10.1)
        assert broken.calls == ["abort: the broker stops"]
        self.successResultOf(stopped)
        assert len(self.flushLoggedErrors(ZeroDivisionError)) == 1  # type: ignore[no-untyped-call]

    def test_the_history_is_closed_whatever_fails(self) -> None:
        self.broker.sessions.at_stop.append(lambda: 1 / 0)
        close = Mock(wraps=self.broker.store.close)
        self.patch(self.broker.store, "close", close)  # type: ignore[no-untyped-call]
        self.successResultOf(self.stop())
        assert close.call_count == 1
        assert len(self.flushLoggedErrors(ZeroDivisionError)) == 1  # type: ignore[no-untyped-call]

    def test_at_the_deadline_clients_are_aborted(self) -> None:
        stubborn = Guest(self.broker, stubborn=True)
        stopped = self.stop()
        self.clock.advance(9.9)
        assert stubborn.calls == ["drain"]
        self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
        self.clock.advance(0.2)
        assert stubborn.calls == ["drain", "abort: the broker stops"]
        self.successResultOf(stopped)
        assert not self.clock.getDelayedCalls()

    def test_queue_keys_that_are_being_written_are_told_before(self) -> None:
        for is_written in (True, False):
            self.setUp()
            guest, keys, topic = Guest(self.broker), self.broker.queue_keys, self.owned()
            waiting: list[Callable[[bool], None]] = []
            self.patch(self.broker.store, "when_synced", waiting.append)  # type: ignore[no-untyped-call]
            keys.rotate(topic, b"new", "ada", "client")
            stopped = self.stop()
            assert guest.calls == []
            self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
            if is_written:
                for call in tuple(waiting):
                    call(True)
            else:
                self.clock.advance(10.1)
            assert keys.matches(topic, b"new") == is_written
            assert guest.calls == ["drain"]
            self.successResultOf(stopped)
            assert not self.clock.getDelayedCalls()

    def owned(self) -> Topic:
        """Return a topic with a queue key."""
        topic = self.broker.topics.create("owned")
        self.broker.queue_keys.close(topic, b"old", "ada", "client")
        return topic

    def test_messages_of_the_tick_are_flushed_before_the_goodbye(self) -> None:
        bob = self.subscriber(self.broker, "news")
        self.publish("news", b"last words")
        stopped = self.stop()
        assert bob.writes == [b"last words\n"]
        self.successResultOf(stopped)

    def test_the_sweep_ends_with_the_broker(self) -> None:
        guest = Guest(self.broker, stubborn=True)
        self.stop()
        self.clock.advance(5)
        assert guest.calls == ["drain"]
        self.broker.clients.discard(guest)


class SweepTests(ServiceCase):
    """Housekeeping, once a second"""

    def setUp(self) -> None:
        super().setUp()
        self.broker.startService()
        self.addCleanup(self.broker.stopService)

    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)

    def test_every_client_is_swept_each_second(self) -> None:
        guest = Guest(self.broker)
        self.advance(2)
        assert guest.calls == [f"sweep {START + 1}", f"sweep {START + 2}"]
        self.broker.clients.discard(guest)
        self.advance(1)
        assert len(guest.calls) == 2

    def test_many_clients_are_swept_in_slices(self) -> None:
        guests = [Guest(self.broker) for _ in range(2000)]
        counts: list[int] = []

        def count() -> None:
            counts.append(sum(len(guest.calls) for guest in guests))

        # Called in the same tick as the sweep, after its beginning.
        self.clock.callLater(1, lambda: self.clock.callLater(0, count))
        self.advance(1)
        assert 0 < counts[0] < 2000
        count()
        assert counts[1] == 2000
        for guest in guests:
            self.broker.clients.discard(guest)

    def calls_of_one_tick(self, number: int) -> int:
        """Return the function calls in a tick that begins to sweep ``number`` clients."""
        guests = [Guest(self.broker) for _ in range(number)]
        counted: list[object] = []
        self.clock.callLater(0.5, lambda: sys.setprofile(lambda *event: counted.append(event[1])))
        self.clock.callLater(1, lambda: self.clock.callLater(0, sys.setprofile, None))
        self.advance(1)
        for guest in guests:
            self.broker.clients.discard(guest)
        return len(counted)

    def test_a_tick_does_as_much_for_many_clients_as_for_more(self) -> None:
        self.addCleanup(sys.setprofile, sys.getprofile())
        many, more = self.calls_of_one_tick(2000), self.calls_of_one_tick(8000)
        assert many < more * 1.1
        assert more < many * 1.1

    def test_a_defect_does_not_end_the_sweeps(self) -> None:
        guests = [Guest(self.broker) for _ in range(2000)]

        def fail(now: float) -> None:
            raise ValueError

        for index in (0, 1999):
            sweep, guests[index].sweep = guests[index].sweep, fail  # type: ignore[method-assign]
            self.advance(1)
            assert len(self.flushLoggedErrors(ValueError)) == 1  # type: ignore[no-untyped-call]
            guests[index].sweep = sweep  # type: ignore[method-assign]
        # The first one does not hide the others.
        assert [len(guests[index].calls) for index in (1, 1998)] == [2, 2]
        self.advance(1)
        assert len(guests[-1].calls) == 2
        for guest in guests:
            self.broker.clients.discard(guest)

    def test_sessions_expire(self) -> None:
        session = self.broker.sessions.open("kind", b"", Owner())
        self.broker.sessions.detach(session, {})
        self.advance(59)
        assert len(self.broker.sessions) == 1
        self.advance(1)
        assert len(self.broker.sessions) == 0

    def test_slow_subscribers_are_evicted(self) -> None:
        reasons: list[str] = []
        listener = listener_of(self.broker, slow_consumer="pause", slow_seconds=3)
        box = listener.outbox(Transport(), Reader(evict=reasons.append))
        box.pause()
        self.advance(3)
        assert reasons == []
        self.advance(1)
        assert reasons == ["slow consumer: behind for 3 s"]
        box.shut("disconnected")

    def hold(self, nbytes: int) -> Big:
        big = Big(nbytes)
        self.broker.memory.holders.add(big)
        self.broker.memory.add(nbytes)
        return big

    def test_too_long_at_the_memory_bound_the_largest_holder_is_evicted(self) -> None:
        small, large = self.hold(30_000), self.hold(70_000)
        self.advance(5)
        assert large.evicted == []
        self.advance(1)
        assert large.evicted == ["memory bound"]
        assert small.evicted == []

    def test_the_next_largest_holder_follows_while_the_bound_is_reached(self) -> None:
        small, large = self.hold(110_000), self.hold(120_000)
        self.advance(6)
        assert large.evicted == ["memory bound"]
        self.broker.memory.holders.discard(large)
        self.broker.memory.free(120_000)
        self.advance(1)
        assert small.evicted == ["memory bound"]

    def test_below_the_bound_no_client_is_evicted(self) -> None:
        big = self.hold(99_999)
        self.advance(100)
        assert big.evicted == []

    def test_leaving_the_bound_resets_its_time(self) -> None:
        big = self.hold(100_000)
        self.advance(4)
        self.broker.memory.free(1)
        self.advance(1)
        self.broker.memory.add(1)
        self.advance(5)
        assert big.evicted == []
        self.advance(1)
        assert big.evicted == ["memory bound"]

    def test_the_bound_without_a_holder_evicts_no_client(self) -> None:
        self.broker.memory.add(100_000)
        self.advance(10)
        assert self.broker.memory.full
        guest = Guest(self.broker)
        self.advance(1)
        assert guest.calls == [f"sweep {START + 11}"]
