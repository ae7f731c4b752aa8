"""Publisher: access, rate limits, and backpressure on the connection."""

from __future__ import annotations

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import NotAuthorized, RateLimited, SenderTooLong
from pubsub.kernel import Columns
from tests.unit.fakes import Held, clock_at, make_broker, make_listener


class PublisherCase(SynchronousTestCase):
    """A broker, a topic and a connection."""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.broker = make_broker(self.clock, BrokerLimits(max_memory=1_000_000))
        self.topic = self.broker.topics.create("news")
        self.connection = Held()

    def publisher(self, **settings: object) -> Publisher:
        listener = make_listener(self.broker, **settings)
        return listener.publisher(self.connection, b"alice")

    def send(self, publisher: Publisher, *payloads: bytes, topic: Topic | None = None) -> int:
        """Publish; return how many messages were accepted."""
        batch = publisher.publish(topic or self.topic, Columns.of(list(payloads)))
        assert batch.payloads() == list(payloads[: batch.count])
        assert batch.nbytes == sum(map(len, batch.payloads()))
        return batch.count


class AcceptTests(PublisherCase):
    """The fields of a batch"""

    def test_the_batch_has_the_sender_and_the_protocol(self) -> None:
        batch = self.publisher().publish(self.topic, Columns.of([b"hi", b"ho"]))
        assert batch.topic == "news"
        assert batch.sender == b"alice"
        assert batch.protocol == "toy"
        assert batch.headers is None
        assert (batch.nbytes, batch.columns.largest, batch.offset) == (4, 2, 0)

    def test_a_batch_may_have_another_sender(self) -> None:
        publisher = self.publisher()
        assert publisher.publish(self.topic, Columns.of([b"x"]), sender=b"carol").sender == b"carol"
        assert publisher.publish(self.topic, Columns.of([b"x"]), sender=b"").sender == b""

    def test_the_batch_has_the_headers(self) -> None:
        headers = [{"a": b"1"}, {}]
        batch = self.publisher().publish(self.topic, Columns.of([b"x", b"y"]), headers)
        assert batch.headers == headers

    def test_accepted_messages_are_counted(self) -> None:
        self.send(self.publisher(), b"four", b"fives")
        assert self.broker.counters.published == 2
        assert self.broker.counters.published_bytes == 9


class AccessTests(PublisherCase):
    """allow-publish"""

    def test_a_topic_that_is_not_permitted_is_refused(self) -> None:
        publisher = self.publisher(allow_publish="sport/*")
        with pytest.raises(NotAuthorized):
            self.send(publisher, b"x")
        assert self.broker.counters.published == 0
        assert self.broker.store.next_offset == 0
        assert self.send(publisher, b"x", topic=self.broker.topics.create("sport/1")) == 1

    def test_a_refusal_costs_no_tokens(self) -> None:
        publisher = self.publisher(allow_publish="sport", rate_messages=1)
        with pytest.raises(NotAuthorized):
            self.send(publisher, b"x")
        assert self.send(publisher, b"x", topic=self.broker.topics.create("sport")) == 1


class SenderTests(PublisherCase):
    """Senders of up to 255 bytes"""

    def test_255_bytes_are_published(self) -> None:
        batch = self.publisher().publish(self.topic, Columns.of([b"x"]), sender=b"s" * 255)
        assert batch.sender == b"s" * 255

    def test_longer_ones_are_refused(self) -> None:
        publisher = self.publisher()
        with pytest.raises(SenderTooLong):
            publisher.publish(self.topic, Columns.of([b"x"]), sender=b"s" * 256)
        publisher.sender = b"s" * 256
        with pytest.raises(SenderTooLong):
            publisher.publish(self.topic, Columns.of([b"x"]))
        assert self.broker.counters.published == 0

    def test_a_missing_permission_is_reported_first(self) -> None:
        with pytest.raises(NotAuthorized):
            self.publisher(allow_publish="x").publish(
                self.topic, Columns.of([b"x"]), sender=b"s" * 256
            )


class RateTests(PublisherCase):
    """rate-* of the connection, and listener-rate-* of all connections"""

    def test_messages_below_the_limit_are_accepted(self) -> None:
        publisher = self.publisher(rate_messages=3)
        assert self.send(publisher, b"a", b"bb", b"ccc", b"dddd", b"e") == 3
        assert self.broker.counters.published == 3
        assert self.broker.counters.published_bytes == 6
        assert self.broker.store.next_offset == 3

    def test_if_no_message_is_accepted_it_is_an_error(self) -> None:
        publisher = self.publisher(rate_messages=2)
        self.send(publisher, b"a", b"b")
        with pytest.raises(RateLimited):
            self.send(publisher, b"c")
        assert self.broker.counters.published == 2
        self.clock.advance(0.5)
        assert self.send(publisher, b"c", b"d") == 1

    def test_bytes_are_limited_too(self) -> None:
        publisher = self.publisher(rate_bytes="20")
        assert self.send(publisher, b"123456", b"123456", b"1") == 2
        with pytest.raises(RateLimited):
            self.send(publisher, b"x")

    def test_the_sender_and_the_headers_of_each_message_are_bytes(self) -> None:
        publisher = self.publisher(rate_bytes="100")
        headers = [{"k": b"v" * 49}, {"k": b"v" * 39}, {}]
        batch = publisher.publish(
            self.topic, Columns.of([b"", b"", b""]), headers=headers, sender=b"s" * 10
        )
        # 60 and 50 bytes; the message that exceeds the limit is the last one.
        assert batch.headers == headers[:2]
        with pytest.raises(RateLimited):
            self.send(publisher, b"")
        self.clock.advance(0.11)
        assert self.send(publisher, b"", b"") == 1

    def test_all_connections_share_the_listeners_limit(self) -> None:
        listener = make_listener(self.broker, listener_rate_messages=3)
        first = listener.publisher(Held(), b"a")
        second = listener.publisher(Held(), b"b")
        assert self.send(first, b"1", b"2") == 2
        assert self.send(second, b"3", b"4") == 1
        with pytest.raises(RateLimited):
            self.send(first, b"5")

    def test_another_listener_has_its_own_limit(self) -> None:
        first = self.publisher(listener_rate_messages=1)
        second = self.publisher(listener_rate_messages=1)
        assert self.send(first, b"1") == 1
        assert self.send(second, b"1") == 1

    def test_the_stricter_of_both_limits_decides_and_charges_both(self) -> None:
        listener = make_listener(self.broker, rate_messages=2, listener_rate_messages=5)
        senders = [listener.publisher(Held(), b"%d" % n) for n in range(3)]
        payloads = [b"x"] * 4
        assert [self.send(sender, *payloads) for sender in senders] == [2, 2, 1]

    def test_a_limiter_is_not_charged_for_refusals_of_the_other(self) -> None:
        listener = make_listener(self.broker, rate_messages=2, listener_rate_messages=4)
        first, second = (listener.publisher(Held(), name) for name in (b"a", b"b"))
        self.send(first, b"1", b"2")
        for _ in range(5):
            with pytest.raises(RateLimited):
                self.send(first, b"3")
        assert self.send(second, b"4", b"5") == 2

    def test_headers_of_refused_messages_are_removed(self) -> None:
        publisher = self.publisher(rate_messages=1)
        batch = publisher.publish(self.topic, Columns.of([b"a", b"b"]), [{"n": b"1"}, {"n": b"2"}])
        assert batch.payloads() == [b"a"]
        assert batch.headers == [{"n": b"1"}]


class BackpressureTests(PublisherCase):
    """Blocked topics and the memory bound"""

    def test_without_a_reason_a_publisher_is_not_held(self) -> None:
        self.send(self.publisher(), b"x")
        assert self.connection.reasons == set()

    def test_a_blocked_topic_holds_after_the_batch(self) -> None:
        blocker = object()
        self.topic.block(blocker)
        assert self.send(self.publisher(), b"x") == 1
        assert self.connection.reasons == {self.topic}
        self.topic.unblock(blocker)
        assert self.connection.reasons == set()

    def test_a_blocked_topic_holds_no_publisher_of_another(self) -> None:
        self.broker.topics.create("other").block(object())
        self.send(self.publisher(), b"x")
        assert self.connection.reasons == set()

    def test_the_memory_bound_holds_after_the_batch(self) -> None:
        self.broker.memory.add(1_000_000)
        assert self.send(self.publisher(), b"x") == 1
        assert self.connection.reasons == {self.broker.memory}
        self.broker.memory.free(1_000_000)
        assert self.connection.reasons == set()


class WithoutConnectionTests(PublisherCase):
    """A sender that cannot be held, such as that of a datagram"""

    def sender(self, **settings: object) -> Publisher:
        return make_listener(self.broker, **settings).publisher(None, b"alice")

    def test_its_messages_are_accepted(self) -> None:
        assert self.send(self.sender(), b"x", b"y") == 2

    def test_a_blocked_topic_refuses_it(self) -> None:
        blocker, sender = object(), self.sender()
        self.topic.block(blocker)
        with pytest.raises(RateLimited):
            self.send(sender, b"x")
        assert self.broker.counters.published == 0
        self.topic.unblock(blocker)
        assert self.send(sender, b"x") == 1

    def test_the_memory_bound_refuses_it(self) -> None:
        self.broker.memory.add(1_000_000)
        with pytest.raises(RateLimited):
            self.send(self.sender(), b"x")
        assert self.broker.store.next_offset == 0

    def test_a_refusal_for_a_blocked_topic_costs_no_tokens(self) -> None:
        blocker, sender = object(), self.sender(rate_messages=1)
        self.topic.block(blocker)
        with pytest.raises(RateLimited):
            self.send(sender, b"x")
        self.topic.unblock(blocker)
        assert self.send(sender, b"x") == 1
