"""Small reads of several topics whose rights and states are known already."""

from __future__ import annotations

from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.identity import NOBODY
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.publishing import permitted_topics
from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.routing import passing_mix
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import TopicNotFound
from pubsub.kernel import Columns, HeadTable
from pubsub.protocols.cafe.codec import Publish, encode
from pubsub.protocols.cafe.message_heads import learn_publish
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Held, Lines, Reader, Transport, clock_at, make_broker, make_listener

CHANNELS = range(1, 5)


class PermittedTopicsTests(SynchronousTestCase):
    """Publishers of cafe's channels, each of which has a topic"""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.store = MemoryStore(10_000, 2**20)
        limits = BrokerLimits(max_memory=1_000_000)
        self.broker = make_broker(self.clock, limits, self.store)
        self.topics = {n: self.broker.topics.create(f"t{n}") for n in CHANNELS}
        self.listener = make_listener(self.broker)
        self.mixes = AddressMixes(self.listener, self.resolve)
        self.heads = HeadTable(learn_publish)
        self.a, self.b = self.publisher(b"a"), self.publisher(b"b")
        self.bob = Transport()
        outbox = self.listener.outbox(self.bob, Reader())
        for topic in self.topics.values():
            self.broker.router.subscribe(outbox, topic, Lines())

    def resolve(self, channel: int) -> Topic:
        if channel not in self.topics:
            raise TopicNotFound(str(channel))
        return self.topics[channel]

    def publisher(self, sender: bytes) -> Publisher:
        return self.listener.publisher(Held(), sender)

    def read(self, publisher: Publisher, *sent: str) -> str:
        """Publish messages, each a digit for its channel and a payload; return in which way."""
        data = b"".join(encode(Publish(int(one[0]), one[1:].encode())) for one in sent)
        if publisher.publish_alike(self.heads, data):
            return "alike"
        columns = self.heads.scan(data)
        return "soon" if self.mixes.publish_soon(columns, publisher) else "not"

    def begin(self) -> None:
        """Publish the first message of a tick."""
        self.a.publish(self.topics[4], Columns.of([b"first"]))

    def turn(self) -> list[str]:
        """End the tick; return what the subscriber got."""
        self.clock.advance(0)
        writes, self.bob.writes = b"".join(self.bob.writes), []
        return writes.decode().split()

    def know(self) -> None:
        """Have both publishers gather messages of the channels 1 and 2."""
        self.begin()
        for publisher in (self.a, self.b):
            assert self.read(publisher, "1x", "2x") in ("soon", "alike")
            assert self.read(publisher, "1x", "2x") == "alike"
        assert self.turn() == ["first", *["x"] * 8]

    def test_they_are_gathered_in_order_with_their_senders(self) -> None:
        self.begin()
        assert self.read(self.a, "11", "22", "23") == "soon"
        assert self.read(self.b, "24", "15") == "soon", "another publisher"
        assert self.read(self.a, "26", "27", "18") == "alike"
        assert self.read(self.b, "29") == "alike", "a lone message"
        assert self.turn() == ["first", *"123456789"]
        found = self.successResultOf(self.store.read(1, None, 2**20)).batches
        assert b"".join(one.sender * one.count for one in found) == b"aaabbaaab"
        assert [self.topics[n].messages for n in (1, 2, 3)] == [3, 6, 0]
        assert (self.a.messages, self.b.messages) == (7, 3)
        assert self.broker.counters.published == 10

    def test_the_first_read_of_a_tick_after_several(self) -> None:
        self.know()
        assert self.read(self.a, "1x", "2x") == "alike"
        assert self.turn() == ["x", "x"]

    def test_a_tick_without_several_before(self) -> None:
        self.know()
        self.turn()
        self.turn()
        self.broker.router.gathers = False
        assert self.read(self.a, "1x", "2x") == "not"

    def test_a_channel_that_was_not_seen_before(self) -> None:
        self.know()
        self.begin()
        assert self.read(self.a, "1x", "3x") == "soon"
        assert self.read(self.b, "3x", "2x") == "alike"
        assert self.read(self.b, "3x", "5x") == "not"
        assert self.turn() == ["first", *["x"] * 4]

    def test_incomplete_empty_and_large_reads(self) -> None:
        self.know()
        self.begin()
        data = encode(Publish(1, b"1")) + encode(Publish(2, b"2"))
        for one in (b"", data[:-1], data + b"x", data[1:]):
            assert not self.a.publish_alike(self.heads, one)
        assert not self.a.publish_alike(self.heads, encode(Publish(1, bytes(4090))) + data)
        assert not self.a.publish_alike(self.heads, encode(Publish(1, bytes(9000))) + data)
        assert self.turn() == ["first"]

    def test_rights_that_are_taken_away(self) -> None:
        self.know()
        self.begin()
        settings = {**self.listener.settings, "allow-publish": ["t1"]}
        self.listener.reconfigure(settings)
        assert self.read(self.a, "1x", "2x") == "not"
        assert self.read(self.b, "2x", "1x") == "not"

    def test_another_view(self) -> None:
        self.know()
        self.begin()
        self.a.access = make_listener(self.broker).access_for(NOBODY)
        assert self.read(self.a, "1x", "2x") == "soon", "other rights are looked at first"
        assert self.read(self.a, "1x", "2x") == "alike"
        assert self.read(self.b, "1x", "2x") == "alike"

    def test_a_topic_whose_state_changes(self) -> None:
        for change in (
            lambda: self.topics[2].block("slow"),
            lambda: self.topics[2].set_durability(Durability.NONE),
            lambda: self.broker.queue_keys.close(self.topics[2], b"key", "s", "c"),
            lambda: self.broker.topics.remove(self.topics[2]),
        ):
            self.setUp()
            self.know()
            self.begin()
            change()
            assert self.read(self.a, "1x", "2x") == "not"
            assert self.read(self.b, "1x", "2x") == "not"
            self.begin()
            assert self.read(self.b, "1x", "3x") == "soon", "the others"
            assert self.read(self.b, "1x", "3x") == "alike"

    def test_topics_that_are_stored_and_others(self) -> None:
        for n in (3, 4):
            self.topics[n].set_durability(Durability.NONE)
        self.broker.router.gathers = True
        assert self.read(self.a, "1x", "2x") == "soon"
        assert self.read(self.b, "3x", "4x") == "not", "they are not gathered with the others"
        assert self.turn() == ["x", "x"]
        self.broker.router.gathers = True
        assert self.read(self.b, "3x", "4x") == "soon"
        assert self.read(self.a, "1x", "2x") == "not"
        assert self.turn() == ["x", "x"]

    def test_many_subscriptions(self) -> None:
        self.know()
        self.begin()
        with patch.object(passing_mix, "_SUBSCRIPTIONS", 3):
            assert self.read(self.a, "1x", "2x") == "soon", "those of the topics are counted"
        self.turn()
        self.begin()
        assert self.read(self.a, "1x", "2x") == "alike"

    def test_the_views_of_replaced_rules_are_not_kept(self) -> None:
        self.know()
        before = self.broker.memory.cached
        for _ in range(3):
            self.listener.reconfigure(self.listener.settings)
            self.know()
        assert self.broker.memory.cached == before

    def test_the_memory_for_addresses_is_counted_and_bounded(self) -> None:
        before = self.broker.memory.cached
        self.know()
        taken = self.broker.memory.cached - before
        assert taken > 2 * 120
        with patch.object(permitted_topics, "_ADDRESS_BYTES", 10_000_000):
            self.begin()
            assert self.read(self.a, "1x", "3x") == "soon"
        assert self.read(self.a, "1x", "2x") == "soon", "all were forgotten"
        self.mixes.clear()
        assert self.read(self.b, "1x", "2x") == "soon"
