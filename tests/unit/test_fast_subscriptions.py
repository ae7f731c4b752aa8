"""fast's live subscriptions: expiry and rotation (sections of seeds/fast.md)."""

from __future__ import annotations

from unittest.mock import patch

from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.routing import sliced_routing
from pubsub.broker.routing.router import Router
from tests.unit import fast_wire as wire
from tests.unit.fakes import START, Bench, Lines
from tests.unit.fast_wire import (
    BAD_TOKEN,
    EXISTS,
    INVALID,
    NEW_OWNER,
    NEW_READER,
    NO_PERMISSION,
    OVER,
    OWNER,
    READER,
    WRONG_KEY,
    FastCase,
)
from tests.unit.streams import Client


class ExpiryTests(FastCase):
    """§4.1: to the second"""

    def setUp(self) -> None:
        self.fast = self.house()
        self.owner = self.fast.owner()

    def publish(self, payload: bytes = b"x") -> None:
        self.owner.send(wire.publish(OWNER, payload))

    def test_a_subscription_ends_with_its_token(self) -> None:
        reader = self.fast.reader(wire.for_seconds(10, "subscribe"))
        self.fast.advance(9.5)
        self.publish(b"in time")
        assert reader.take() == wire.message(b"in time")
        self.fast.clock.advance(0.499)
        assert reader.take() == b""
        self.fast.clock.advance(0.001)
        assert reader.take() == OVER
        self.publish()
        assert reader.take() == b""
        assert not reader.closed
        assert self.fast.refusals() == {"subscription-ended": 1}

    def test_earlier_messages_precede_the_end(self) -> None:
        reader = self.fast.reader(wire.for_seconds(10, "subscribe"))
        self.fast.advance(9.5)
        self.owner.stream.feed(wire.publish(OWNER, b"last"))
        self.fast.clock.advance(0.5)
        assert reader.take() == wire.message(b"last") + OVER

    def test_a_clock_that_was_set_back_extends_it(self) -> None:
        reader = self.fast.reader(wire.for_seconds(10, "subscribe"))
        self.fast.listeners["fast"].wall.system = lambda: self.fast.clock.seconds() - 3600
        self.fast.advance(10)
        self.publish()
        assert reader.take() == wire.message(b"x")
        self.fast.advance(3600)
        assert reader.take() == OVER

    def test_a_clock_that_was_set_forward_ends_it(self) -> None:
        """Within a second; the same if the computer has slept."""
        self.fast.start()
        first, second = wire.for_seconds(3600, "subscribe"), wire.for_seconds(9000, "subscribe")
        readers = self.fast.reader(first), self.fast.reader(second), self.fast.reader()
        self.fast.advance(2)
        self.fast.listeners["fast"].wall.system = lambda: self.fast.clock.seconds() + 7200
        self.fast.advance(1)
        self.publish()
        took = [reader.take() for reader in readers]
        assert took == [OVER, wire.message(b"x"), wire.message(b"x")]
        self.fast.advance(1800)
        assert [reader.take() for reader in readers] == [b"", OVER, b""]

    def test_the_last_token_counts(self) -> None:
        reader = self.fast.reader(wire.for_seconds(10, "subscribe"))
        reader.send(wire.subscribe(wire.for_seconds(20, "subscribe")))
        self.fast.advance(15)
        self.publish()
        assert reader.take() == wire.message(b"x")
        self.fast.advance(5)
        assert reader.take() == OVER

    def test_the_last_token_counts_even_if_it_expires_earlier(self) -> None:
        reader = self.fast.reader()
        reader.send(wire.subscribe(wire.for_seconds(10, "subscribe")))
        self.fast.advance(10)
        assert reader.take() == OVER
        reader.send(wire.subscribe(READER))
        self.fast.advance(1000)
        self.publish()
        assert reader.take() == wire.message(b"x")

    def test_a_refused_subscribe_changes_nothing(self) -> None:
        reader = self.fast.reader(wire.for_seconds(10, "subscribe"))
        reader.send(wire.subscribe(wire.grant("publish")))
        assert reader.take() == wire.error(2, NO_PERMISSION)
        self.fast.advance(10)
        assert reader.take() == OVER

    def test_each_topic_has_its_own_expiry(self) -> None:
        more = wire.topic_id("more")
        both = wire.for_seconds(10, "subscribe")
        reader = self.fast.client(wire.create(OWNER, "more") + wire.subscribe(both))
        reader.send(wire.subscribe(OWNER, more))
        self.fast.advance(10)
        assert reader.take() == OVER
        self.owner.send(wire.publish(OWNER, b"x", topic=more))
        assert reader.take() == wire.message(b"x", topic=more)

    def test_a_client_that_is_evicted_while_it_subscribes(self) -> None:
        """Messages that wait are delivered before a subscription begins."""
        memory = self.fast.broker.memory
        used = memory.used - memory.cached
        for kind, name in ((Router, "complete"), (Outbox, "make_changes")):
            client = self.fast.client()

            def evict(*given: object, client: Client = client, **named: object) -> None:
                if not client.closed:
                    client.protocol.evict("too slow")

            with patch.object(kind, name, evict):
                client.send(wire.subscribe(wire.for_seconds(9, "subscribe")))
            assert client.closed
            assert memory.used - memory.cached == used
            assert not self.fast.clock.getDelayedCalls()

    def test_unsubscribing_cancels_the_expiry(self) -> None:
        reader = self.fast.reader(wire.for_seconds(10, "subscribe"))
        reader.send(wire.unsubscribe(READER))
        self.fast.advance(20)
        assert reader.take() == b""
        assert not self.fast.clock.getDelayedCalls()

    def test_without_errors_it_ends_silently(self) -> None:
        fast = self.house(errors="off")
        owner = fast.owner()
        reader = fast.reader(wire.for_seconds(10, "subscribe"))
        fast.advance(10)
        owner.send(wire.publish(OWNER, b"x"))
        assert reader.take() == b""

    def test_requests_are_refused_from_that_second_on(self) -> None:
        raw = wire.for_seconds(10)
        client = self.fast.client(wire.publish(raw, b"x"))
        self.fast.clock.advance(9.999)
        client.send(wire.publish(raw, b"x"))
        assert client.take() == b""
        self.fast.clock.advance(0.001)
        client.send(wire.publish(raw, b"x") + wire.subscribe(raw))
        assert client.take() == wire.error(3, BAD_TOKEN) + wire.error(2, BAD_TOKEN)

    def test_a_token_that_is_not_valid_yet(self) -> None:
        raw = wire.grant(nbf=START + 10)
        client = self.fast.client(wire.subscribe(raw))
        assert client.take() == wire.error(2, BAD_TOKEN)
        self.fast.advance(10)
        client.send(wire.subscribe(raw))
        assert client.take() == b""

    def test_a_token_with_a_very_late_expiry(self) -> None:
        reader = self.fast.reader(wire.grant("subscribe", exp=1e300))
        self.fast.advance(10_000)
        self.publish()
        assert reader.take() == wire.message(b"x")


class RotationTests(FastCase):
    """§4.3"""

    def test_the_old_key_is_invalid_at_once(self) -> None:
        fast = self.house()
        owner = fast.owner()
        owner.send(wire.rotate(OWNER, b"k2"))
        assert owner.take() == b""
        for kind, request in (
            (2, wire.subscribe(OWNER)),
            (3, wire.publish(OWNER, b"x")),
            (5, wire.unsubscribe(OWNER)),
            (7, wire.rotate(OWNER, b"k3")),
        ):
            assert self.answer(fast, request) == wire.error(kind, WRONG_KEY)
        assert self.answer(fast, wire.create(OWNER)) == wire.error(1, EXISTS)
        assert self.answer(fast, wire.create(NEW_OWNER) + wire.subscribe(NEW_READER)) == b""

    def test_subscribers_are_notified_and_stay(self) -> None:
        fast = self.house()
        owner = fast.owner()
        readers = [fast.reader(), fast.reader(OWNER)]
        owner.send(
            wire.publish(OWNER, b"1") + wire.rotate(OWNER, b"k2") + wire.publish(NEW_OWNER, b"2")
        )
        for reader in readers:
            assert reader.take() == wire.message(b"1") + wire.key_update(b"k2") + wire.message(b"2")
        owner.send(wire.rotate(NEW_OWNER, b"k3") + wire.publish(wire.grant(key="k3"), b"3"))
        for reader in readers:
            assert reader.take() == wire.key_update(b"k3") + wire.message(b"3")

    def test_without_permission_nothing_changes(self) -> None:
        fast = self.house()
        fast.owner()
        reader = fast.reader()
        for raw in (READER, wire.grant("publish", "create", "subscribe")):
            assert self.answer(fast, wire.rotate(raw, b"k2")) == wire.error(7, NO_PERMISSION)
        assert reader.take() == b""
        assert self.answer(fast, wire.rotate(wire.grant("rotate"), b"k2")) == b""
        assert reader.take() == wire.key_update(b"k2")

    def test_keys_that_no_token_can_contain(self) -> None:
        fast = self.house()
        fast.owner()
        for key in (b"", b"\xff", b"k\xc3"):
            assert self.answer(fast, wire.rotate(OWNER, key)) == wire.error(7, INVALID)
        assert self.answer(fast, wire.rotate(OWNER, "schlüssel".encode())) == b""
        assert self.answer(fast, wire.subscribe(wire.grant(key="schlüssel"))) == b""

    def test_subscriptions_with_expired_tokens_end(self) -> None:
        """A token that has expired before its timer is called."""
        fast = self.house()
        owner = fast.owner()
        late = fast.reader(wire.for_seconds(10, "subscribe"))
        kept = fast.reader()
        fast.clock.rightNow += 10
        owner.stream.feed(wire.rotate(OWNER, b"k2"))
        fast.turn()
        assert late.take() == OVER
        assert kept.take() == wire.key_update(b"k2")
        fast.turn()
        assert late.take() == b""

    def test_the_rotating_subscriber_is_notified(self) -> None:
        fast = self.house()
        client = fast.client(wire.create(OWNER) + wire.subscribe(OWNER) + wire.rotate(OWNER, b"k2"))
        assert client.take() == wire.key_update(b"k2")

    def test_a_token_with_the_old_key_still_expires(self) -> None:
        fast = self.house()
        owner = fast.owner()
        reader = fast.reader(wire.for_seconds(10, "subscribe"))
        owner.send(wire.rotate(OWNER, b"k2"))
        fast.advance(10)
        assert reader.take() == wire.key_update(b"k2") + OVER

    def test_other_topics_keep_the_same_key(self) -> None:
        fast = self.house()
        owner = fast.owner()
        more = wire.topic_id("more")
        owner.send(wire.create(OWNER, "more") + wire.rotate(OWNER, b"k2"))
        owner.send(wire.subscribe(OWNER, more) + wire.publish(OWNER, b"x", topic=more))
        assert owner.take() == wire.message(b"x", topic=more)


class SlicedRotationTests(FastCase):
    """§4.3 while there are too many subscribers for one tick"""

    def setUp(self) -> None:
        self.patch(sliced_routing, "_FEW", 0)  # type: ignore[no-untyped-call]
        self.patch(sliced_routing, "_UNITS", 1)  # type: ignore[no-untyped-call]
        self.fast = self.house()
        self.owner = self.fast.client(wire.create(OWNER))
        self.settle()
        self.readers = [self.fast.reader() for _ in range(10)]
        self.keys = self.fast.broker.queue_keys

    def settle(self) -> None:
        for _ in range(40):
            self.fast.turn()

    def begin(self, sends: bytes = b"") -> None:
        """Rotate to k2; the subscribers are rechecked in the next ticks."""
        self.owner.stream.feed(wire.rotate(OWNER, b"k2") + sends)
        topic = self.fast.broker.topics.named("news")
        assert self.keys.matches(topic, b"k2")
        assert self.fast.broker.router.waiting

    def test_the_next_packets_come_after_it(self) -> None:
        self.begin(
            wire.rotate(NEW_OWNER, b"k3")
            + wire.publish(wire.grant(key="k3"), b"x")
            + wire.create(OWNER)
        )
        topic = self.fast.broker.topics.named("news")
        # The second rotation waits, so that a client has one at most.
        assert not self.keys.matches(topic, b"k3")
        self.settle()
        for reader in self.readers:
            assert reader.take() == wire.key_update(b"k2") + wire.key_update(b"k3") + wire.message(
                b"x"
            )
        assert self.owner.take() == wire.error(1, EXISTS)

    def test_messages_of_others_come_after_it(self) -> None:
        self.begin()
        other = self.fast.client()
        other.stream.feed(wire.publish(OWNER, b"old") + wire.publish(NEW_OWNER, b"x"))
        self.settle()
        assert other.take() == wire.error(3, WRONG_KEY)
        for reader in self.readers:
            assert reader.take() == wire.key_update(b"k2") + wire.message(b"x")

    def test_a_subscriber_that_has_a_token_with_the_new_key_already(self) -> None:
        self.begin()
        last = self.readers[-1]
        last.stream.feed(wire.subscribe(NEW_READER) + wire.publish(NEW_OWNER, b"x"))
        self.settle()
        for reader in self.readers:
            assert reader.take() == wire.key_update(b"k2") + wire.message(b"x")

    def test_those_who_leave_meanwhile(self) -> None:
        self.begin()
        leaving, lost = self.readers[-1], self.readers[-2]
        leaving.stream.feed(wire.unsubscribe(NEW_OWNER))
        lost.stream.lose()
        self.settle()
        self.owner.send(wire.publish(NEW_OWNER, b"x"))
        self.settle()
        assert leaving.take() == wire.key_update(b"k2")
        for reader in self.readers[:-2]:
            assert reader.take() == wire.key_update(b"k2") + wire.message(b"x")
        assert self.fast.refusals() == {}

    def test_a_token_expires_meanwhile(self) -> None:
        late = self.fast.reader(wire.for_seconds(10, "subscribe"))
        self.fast.clock.rightNow += 10
        self.begin()
        # The timer is called before its turn.
        self.settle()
        assert late.take() == OVER
        assert self.fast.refusals() == {"subscription-ended": 1}
        assert {reader.take() for reader in self.readers} == {wire.key_update(b"k2")}

    def test_the_rotating_client_leaves(self) -> None:
        self.begin(wire.publish(NEW_OWNER, b"x"))
        self.owner.stream.lose()
        self.settle()
        assert {reader.take() for reader in self.readers} == {wire.key_update(b"k2")}

    def test_a_deleted_topic(self) -> None:
        self.begin()
        topic = self.fast.broker.topics.named("news")
        for _ in self.fast.broker.topic_lifecycle.delete(topic):
            pass
        self.settle()
        for reader in self.readers:
            assert reader.take() == wire.key_update(b"k2") + OVER

    def test_a_topic_that_is_closed(self) -> None:
        """The packets of the client that creates it wait as well."""
        bench = Bench()
        broker, topic = self.fast.broker, self.fast.broker.topics.create("open")
        reader = bench.outbox(recheck=lambda topic, change: False).outbox
        assert reader is not None
        broker.router.subscribe(reader, topic, Lines())
        self.owner.stream.feed(wire.create(OWNER, "open") + wire.unsubscribe(OWNER, 0))
        assert topic in self.keys
        assert not self.owner.stream.received
        self.settle()
        assert self.owner.take() == wire.error(5, 4, 0)
        assert not topic.subscribers


class GraceTests(FastCase):
    """§4.3 with ``rotation-grace``"""

    def setUp(self) -> None:
        self.fast = self.house(rotation_grace=30)
        self.owner = self.fast.owner()

    def test_subscriptions_that_are_not_renewed_end(self) -> None:
        reader = self.fast.reader()
        self.owner.send(wire.rotate(OWNER, b"k2"))
        assert reader.take() == wire.key_update(b"k2")
        self.fast.advance(29.5)
        self.owner.send(wire.publish(NEW_OWNER, b"x"))
        assert reader.take() == wire.message(b"x")
        self.fast.advance(0.5)
        assert reader.take() == OVER

    def test_renewed_subscriptions_stay(self) -> None:
        reader = self.fast.reader()
        self.owner.send(wire.rotate(OWNER, b"k2"))
        reader.send(wire.subscribe(READER))
        assert reader.take() == wire.key_update(b"k2") + wire.error(2, WRONG_KEY)
        reader.send(wire.subscribe(NEW_READER))
        self.fast.advance(100)
        self.owner.send(wire.publish(NEW_OWNER, b"x"))
        assert reader.take() == wire.message(b"x")

    def test_a_second_rotation_does_not_extend_the_grace(self) -> None:
        reader = self.fast.reader()
        self.owner.send(wire.rotate(OWNER, b"k2"))
        self.fast.advance(20)
        self.owner.send(wire.rotate(NEW_OWNER, b"k3"))
        assert reader.take() == wire.key_update(b"k2") + wire.key_update(b"k3")
        self.fast.advance(10)
        assert reader.take() == OVER

    def test_the_grace_does_not_extend_the_life_of_a_token(self) -> None:
        reader = self.fast.reader(wire.for_seconds(10, "subscribe"))
        self.owner.send(wire.rotate(OWNER, b"k2"))
        self.fast.advance(10)
        assert reader.take() == wire.key_update(b"k2") + OVER
