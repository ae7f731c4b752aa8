"""Publisher and AddressMixes: reads that bring messages of several topics."""

from __future__ import annotations

from itertools import pairwise

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.listeners.listener import Listener
from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.routing import combination_cache
from pubsub.broker.routing.batch import Batch
from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.broker.routing.topic_mix import TopicMix
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import HistoryUnavailable
from pubsub.kernel import Columns, Senders
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Held, Lines, Reader, Transport, clock_at, make_broker, make_listener


class FailingStore(MemoryStore):
    """A history that can be unavailable."""

    failing = False

    def append(self, batch: Batch, senders: Senders | None = None) -> None:
        if self.failing:
            raise HistoryUnavailable("disk full")
        super().append(batch, senders)


class MixedCase(SynchronousTestCase):
    """A broker, the topics a, b and c, and a connection."""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.store = FailingStore(1000, 2**20)
        self.broker = make_broker(self.clock, BrokerLimits(max_memory=1_000_000), self.store)
        self.topics = {name: self.broker.topics.create(name) for name in "abc"}
        self.connection = Held()

    def listener(self, **settings: object) -> Listener:
        return make_listener(self.broker, **settings)

    def publisher(self, **settings: object) -> Publisher:
        return self.listener(**settings).publisher(self.connection, b"alice")

    def mix(self, *sent: str) -> tuple[TopicMix, Columns]:
        """Return messages whose topic is their first letter, and the mix of these topics."""
        mix = self.broker.router.mix({self.topics[each[0]] for each in sent})
        indexes = [mix.names.index(each[0]) for each in sent]
        return mix, Columns.of([each[1:].encode() for each in sent], indexes)

    def publish(
        self, publisher: Publisher, *sent: str, sender: bytes | None = None
    ) -> Batch | None:
        return publisher.publish_mixed(*self.mix(*sent), sender=sender)

    def stored(self) -> list[str]:
        """Return the messages in the history, in order."""
        page = self.successResultOf(self.store.read(0, None, 2**20))
        return [
            batch.topics[index] + payload.decode()
            for batch in page.batches
            for index, payload in zip(batch.columns.indexes(), batch.payloads(), strict=True)
        ]

    def assert_nothing_published(self) -> None:
        assert self.stored() == []
        assert self.broker.counters.published == 0
        assert self.connection.reasons == set()


class AcceptTests(MixedCase):
    """Messages that are published at once"""

    def test_the_batch(self) -> None:
        publisher = self.publisher()
        batch = self.publish(publisher, "a1", "b2", "a3")
        assert batch is not None
        assert set(batch.topics) == {"a", "b"}
        assert (batch.sender, batch.protocol, batch.headers) == (b"alice", "toy", None)
        assert (batch.offset, batch.sequence, batch.count, batch.nbytes) == (0, 0, 3, 3)
        following = self.publish(publisher, "b4", "c5", sender=b"carol")
        assert following is not None
        assert (following.offset, following.sequence, following.sender) == (3, 3, b"carol")
        assert self.stored() == ["a1", "b2", "a3", "b4", "c5"]

    def test_accepted_messages_are_counted(self) -> None:
        publisher = self.publisher()
        self.publish(publisher, "afour", "bfives")
        counters = self.broker.counters
        assert (publisher.messages, publisher.nbytes) == (2, 9)
        assert (counters.published, counters.published_bytes) == (2, 9)

    def test_the_figures_of_the_topics(self) -> None:
        """They are brought up to date by ``settle``, with the time of the last read."""
        publisher = self.publisher()
        self.publish(publisher, "afour", "bfives", "a")
        self.clock.advance(5)
        self.publish(publisher, "b", "afive")
        self.publish(publisher, "bb", "cc")
        self.broker.dispatcher.settle()
        a, b, c = self.topics.values()
        assert [(topic.messages, topic.nbytes) for topic in (a, b, c)] == [(3, 8), (3, 6), (1, 1)]
        now = self.broker.dispatcher.publish(c, Columns.one(b"x"), b"", "toy").timestamp
        assert {a.last_timestamp, b.last_timestamp, c.last_timestamp} == {now}
        self.broker.dispatcher.settle()
        assert (a.messages, b.messages, c.messages) == (3, 3, 2)

    def test_the_figures_of_many_mixes(self) -> None:
        """Not every mix is kept until the second is over."""
        publisher = self.publisher()
        topics = [self.broker.topics.create(f"topic {number}") for number in range(40)]
        for one, other in pairwise(topics):
            mix = self.broker.router.mix((one, other))
            publisher.publish_mixed(mix, Columns.of([b"x", b"yy"], [0, 1]))
        assert sum(topic.messages for topic in topics) >= 39
        self.broker.dispatcher.settle()
        assert [topic.messages for topic in topics] == [1, *[2] * 38, 1]

    def test_topics_that_are_not_stored(self) -> None:
        for topic in self.topics.values():
            topic.set_durability(Durability.NONE)
        batch = self.publish(self.publisher(), "a1", "b2")
        assert batch is not None
        assert batch.offset == self.store.next_offset == 0
        assert self.stored() == []

    def test_without_a_history_a_failing_store_does_not_matter(self) -> None:
        self.store.failing = True
        for topic in self.topics.values():
            topic.set_durability(Durability.NONE)
        assert self.publish(self.publisher(), "a1", "b2") is not None


class RefuseTests(MixedCase):
    """Messages that must be published one topic after another"""

    def test_without_a_connection(self) -> None:
        publisher = self.listener().publisher(None, b"alice")
        assert self.publish(publisher, "a1", "b2") is None
        self.assert_nothing_published()

    def test_a_topic_that_may_not_be_published_to(self) -> None:
        publisher = self.publisher(allow_publish=["a", "c"])
        assert self.publish(publisher, "a1", "b2") is None
        self.assert_nothing_published()
        assert self.publish(publisher, "a1", "c2") is not None

    def test_access_rules_that_change(self) -> None:
        listener = self.listener()
        publisher = listener.publisher(self.connection, b"alice")
        assert self.publish(publisher, "a1", "b2") is not None
        listener.reconfigure({**listener.settings, "allow-publish": ("a",)})
        assert self.publish(publisher, "a3", "b4") is None
        listener.reconfigure({**listener.settings, "allow-publish": ("[ab]",)})
        assert self.publish(publisher, "a5", "b6") is not None
        assert self.stored() == ["a1", "b2", "a5", "b6"]

    def test_a_topic_that_gets_a_queue_key(self) -> None:
        publisher = self.publisher()
        assert self.publish(publisher, "a1", "b2") is not None
        self.broker.queue_keys.close(self.topics["b"], b"k1", "ada", "test")
        assert self.publish(publisher, "a3", "b4") is None
        assert self.publish(publisher, "a5", "c6") is not None
        self.broker.queue_keys.drop("b")
        assert self.publish(publisher, "a7", "b8") is not None
        assert self.stored() == ["a1", "b2", "a5", "c6", "a7", "b8"]

    def test_a_topic_of_the_broker(self) -> None:
        self.topics["$"] = self.broker.topics.create("$SYS/x")
        mix = self.broker.router.mix([self.topics["$"], self.topics["a"]])
        columns = Columns.of([b"1", b"2"], [0, 1])
        assert self.publisher().publish_mixed(mix, columns) is None
        self.assert_nothing_published()

    def test_one_topic_without_a_history_among_others(self) -> None:
        """Other brokers cannot be sent such a read."""
        self.topics["b"].set_durability(Durability.NONE)
        self.patch(Dispatcher, "stores_parts", False)  # type: ignore[no-untyped-call]
        publisher = self.publisher()
        assert self.publish(publisher, "a1", "b2", "c3") is None
        assert self.publish(publisher, "b1", "a2") is None
        self.assert_nothing_published()
        assert self.publish(publisher, "a1", "c2") is not None

    def test_a_durability_that_changes(self) -> None:
        publisher = self.publisher()
        assert self.publish(publisher, "a1", "b2") is not None
        self.topics["b"].set_durability(Durability.NONE)
        batch = self.publish(publisher, "b3", "a4", "b5")
        assert batch is not None
        assert (batch.offset, batch.sequence) == (2, 2)
        self.topics["a"].set_durability(Durability.NONE)
        assert self.publish(publisher, "a6", "b7") is not None
        assert self.stored() == ["a1", "b2", "a4"]

    def test_a_history_that_is_not_available(self) -> None:
        self.store.failing = True
        publisher = self.publisher(rate_messages=100)
        assert self.publish(publisher, "a1", "b2") is None
        self.assert_nothing_published()
        assert publisher.messages == 0
        self.store.failing = False
        # The refused messages have cost nothing.
        assert self.publish(publisher, *["a1", "b2"] * 50) is not None


class RateTests(MixedCase):
    """Rate limits"""

    def test_messages_within_the_limit(self) -> None:
        publisher = self.publisher(rate_messages=4)
        assert self.publish(publisher, "a1", "b2", "a3", "b4") is not None
        assert self.publish(publisher, "a5", "b6") is None
        self.clock.advance(0.5)
        assert self.publish(publisher, "a5", "b6") is not None

    def test_messages_over_the_limit_are_not_charged(self) -> None:
        publisher = self.publisher(rate_messages=4)
        assert self.publish(publisher, "a1", "b2", "a3", "b4", "c5") is None
        self.assert_nothing_published()
        batch = publisher.publish(self.topics["a"], Columns.of([b"1", b"2", b"3", b"4"]))
        assert batch.count == 4

    def test_bytes(self) -> None:
        publisher = self.publisher(rate_bytes=1000)
        large = "." * 600
        # A message is admitted while any byte is left.
        assert self.publish(publisher, f"a{large}", f"b{large}", "a1") is None
        self.assert_nothing_published()
        assert self.publish(publisher, f"a{large}", f"b{large}") is not None
        assert self.publish(publisher, "a1", "b2") is None

    def test_the_sender_of_each_message_is_bytes(self) -> None:
        publisher = self.publisher(rate_bytes=1000)
        sender = b"s" * 250
        assert self.publish(publisher, "a1", "b2", "a3", "b4", "a5", sender=sender) is None
        self.assert_nothing_published()
        assert self.publish(publisher, "a1", "b2", "a3", "b4", sender=sender) is not None
        assert self.publish(publisher, "a1", "b2") is None

    def test_a_sender_that_is_too_long(self) -> None:
        assert self.publish(self.publisher(), "a1", "b2", sender=b"s" * 256) is None
        self.assert_nothing_published()

    def test_the_limit_of_all_connections(self) -> None:
        listener = self.listener(listener_rate_messages=4, rate_messages=100)
        first = listener.publisher(self.connection, b"a")
        second = listener.publisher(Held(), b"b")
        assert self.publish(first, "a1", "b2", "a3") is not None
        assert self.publish(second, "a4", "b5") is None
        assert second.publish(self.topics["a"], Columns.of([b"4"])).count == 1


class BackpressureTests(MixedCase):
    """Reasons to hold the connection"""

    def test_no_hold_without_a_reason(self) -> None:
        self.publish(self.publisher(), "a1", "b2")
        assert self.connection.reasons == set()

    def test_each_topic_that_is_blocked(self) -> None:
        blocker = object()
        for name in "bc":
            self.topics[name].block(blocker)
        assert self.publish(self.publisher(), "a1", "b2") is not None
        assert self.connection.reasons == {self.topics["b"]}
        assert self.publish(self.publisher(), "b1", "c2") is not None
        assert self.connection.reasons == {self.topics["b"], self.topics["c"]}
        self.topics["b"].unblock(blocker)
        assert self.connection.reasons == {self.topics["c"]}
        self.topics["c"].unblock(blocker)
        assert self.connection.reasons == set()

    def test_the_memory_bound(self) -> None:
        self.broker.memory.add(1_000_000)
        assert self.publish(self.publisher(), "a1", "b2") is not None
        assert self.connection.reasons == {self.broker.memory}
        self.broker.memory.free(1_000_000)
        assert self.connection.reasons == set()

    def test_a_history_that_is_behind(self) -> None:
        self.store.gate.close()
        assert self.publish(self.publisher(), "a1", "b2") is not None
        assert self.connection.reasons == {self.store.gate}
        self.store.gate.open()
        assert self.connection.reasons == set()

    def test_a_history_that_is_behind_does_not_hold_topics_without_one(self) -> None:
        for topic in self.topics.values():
            topic.set_durability(Durability.NONE)
        self.store.gate.close()
        assert self.publish(self.publisher(), "a1", "b2") is not None
        assert self.connection.reasons == set()


class MixesTests(MixedCase):
    """AddressMixes"""

    def setUp(self) -> None:
        super().setUp()
        self.resolved: list[str] = []
        self.mixes = AddressMixes(make_listener(self.broker), self.resolve)

    def resolve(self, address: str) -> Topic:
        """An address is the name of its topic in any case, and perhaps a number."""
        self.resolved.append(address)
        return self.broker.topics.named(address.lower()[0])

    def find(self, *sent: str) -> list[str] | None:
        """Return the messages by topic; their addresses are before a colon."""
        pairs = [each.split(":") for each in sent]
        addresses = list(dict.fromkeys(address for address, _ in pairs))
        indexes = [addresses.index(address) for address, _ in pairs]
        columns = Columns.of([payload.encode() for _, payload in pairs], indexes, addresses)
        found = self.mixes.find(columns)
        if found is None:
            return None
        mix, mapped = found
        return [
            mix.names[index] + payload.decode()
            for index, payload in zip(mapped.indexes(), mapped.payloads(), strict=True)
        ]

    def test_messages_get_the_indexes_of_their_topics(self) -> None:
        assert self.find("a:1", "c:2", "a:3", "b:4") == ["a1", "c2", "a3", "b4"]
        assert self.find("b:1", "a:2", "c:3", "b:4") == ["b1", "a2", "c3", "b4"]

    def test_addresses_are_resolved_once(self) -> None:
        for _ in range(3):
            self.find("a:1", "b:2")
        assert self.resolved == ["a", "b"]

    def test_two_addresses_of_a_topic(self) -> None:
        assert self.find("a:1", "A:2", "b:3", "A:4") == ["a1", "a2", "b3", "a4"]

    def test_all_addresses_of_one_topic(self) -> None:
        assert self.find("a:1", "A:2", "a:3") == ["a1", "a2", "a3"]

    def test_an_address_without_a_topic(self) -> None:
        assert self.find("a:1", "x:2") is None
        self.topics["x"] = self.broker.topics.create("x")
        assert self.find("a:1", "x:2") == ["a1", "x2"]

    def test_a_topic_that_is_not_hosted_here(self) -> None:
        offered = self.broker.topics.create("x", hosted=False)
        assert self.find("a:1", "x:2") is None
        self.broker.topics.claim(offered)
        assert self.find("a:1", "x:2") == ["a1", "x2"]

    def test_a_topic_that_ends_and_comes_back(self) -> None:
        assert self.find("a:1", "b:2") == ["a1", "b2"]
        self.broker.topics.remove(self.topics["b"])
        assert self.find("a:1", "b:2") is None
        assert self.find("a:1", "b:2") is None
        again = self.broker.topics.create("b")
        columns = Columns.of([b"1", b"2"], [0, 1], ["a", "b"])
        found = self.mixes.find(columns)
        assert found is not None
        assert again in found[0].topics
        assert self.topics["b"] not in found[0].topics

    def test_known_combinations_are_bounded(self) -> None:
        self.patch(combination_cache, "_MAX_ITEMS", 20)  # type: ignore[no-untyped-call]
        for number in range(30):
            assert self.find(f"a{number}:1", "b:2") == ["a1", "b2"]
        assert len(self.mixes._known) <= 10

    def test_topics_of_too_many_empty_messages_to_be_gathered_are_not_looked_up(self) -> None:
        self.broker.router.gathers = True
        addresses = [f"a{number}" for number in range(65)]
        many = Columns.of([b""] * 65, list(range(65)), addresses)
        assert not self.mixes.publish_soon(many, self.publisher())
        assert self.resolved == []
        few = Columns.of([b""] * 64, list(range(64)), addresses[:64])
        assert self.mixes.publish_soon(few, self.publisher())

    def test_a_mix_lasts_as_long_as_the_router_has_it(self) -> None:
        for _ in range(2):
            assert self.find("a:1", "b:2") == ["a1", "b2"]
        assert len(self.broker.router.mixes) == 1
        self.broker.router.mixes.clear()
        assert self.find("b:1", "a:2") == ["b1", "a2"]
        assert self.find("a:1", "b:2") == ["a1", "b2"]
        assert len(self.broker.router.mixes) == len(self.mixes._known) == 1


class DeliveryTests(MixedCase):
    """From the publisher to the outbox"""

    def test_a_subscriber_receives_them_in_order(self) -> None:
        transport = Transport()
        outbox = self.listener().outbox(transport, Reader())
        transport.outbox = outbox
        for name in "ab":
            self.broker.router.subscribe(outbox, self.topics[name], Lines(name.encode()))
        publisher = self.publisher()
        self.publish(publisher, "a1", "b2", "c3", "a4")
        publisher.publish(self.topics["b"], Columns.of([b"5"]))
        self.publish(publisher, "b6", "a7")
        self.clock.advance(0)
        assert transport.writes == [b"a1\nb2\na4\nb5\nb6\na7\n"]
        assert self.broker.counters.delivered == 6
