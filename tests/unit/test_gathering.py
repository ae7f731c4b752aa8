"""Gathering: small reads of several publishers, published together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from unittest.mock import patch

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.routing import passing_mix
from pubsub.broker.routing.batch import Batch
from pubsub.broker.topic_space.durability import Durability, DurabilityRules
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import HistoryUnavailable, NotAuthorized
from pubsub.interfaces import Encoding
from pubsub.kernel import Columns, HeadTable, Senders
from pubsub.protocols.cafe.channels import MessageEncoding
from pubsub.protocols.cafe.codec import Publish, encode
from pubsub.protocols.cafe.message_heads import learn_publish
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Held, Lines, Reader, Transport, clock_at, make_broker, make_listener


class Store(MemoryStore):
    """A history that can fail, and that shows what was appended by one call."""

    failing = False

    def __init__(self) -> None:
        super().__init__(10_000, 2**20)
        self.appended: list[int] = []

    def append(self, batch: Batch, senders: Senders | None = None) -> None:
        if self.failing:
            raise HistoryUnavailable("disk full")
        super().append(batch, senders)
        self.appended.append(batch.count)


class GatheringCase(SynchronousTestCase):
    """A broker, the topic t, its subscriber, and the publishers a and b."""

    limits = BrokerLimits(max_memory=1_000_000)

    def setUp(self) -> None:
        self.clock = clock_at()
        self.store = Store()
        self.broker = make_broker(self.clock, self.limits, self.store)
        self.router = self.broker.router
        self.topic = self.broker.topics.create("t")
        self.listener = make_listener(self.broker)
        self.a, self.b = self.publisher(b"a"), self.publisher(b"b")

    def publisher(self, sender: bytes) -> Publisher:
        return self.listener.publisher(Held(), sender)

    def subscriber(self, *topics: Topic, encoding: Encoding) -> Transport:
        transport = Transport()
        outbox = self.listener.outbox(transport, Reader())
        for topic in topics or (self.topic,):
            self.router.subscribe(outbox, topic, encoding)
        return transport

    def first(self) -> None:
        """Publish the first message of the tick."""
        self.a.publish(self.topic, Columns.of([b"first"]))

    def soon(self, publisher: Publisher, *payloads: bytes) -> bool:
        return publisher.publish_soon(self.topic, Columns.of(list(payloads)))

    def turn(self) -> None:
        self.clock.advance(0)

    def stored(self) -> list[tuple[str, bytes, int, int, list[bytes]]]:
        """Return topic, sender, offset, sequence and payloads of what is stored."""
        page = self.successResultOf(self.store.read(0, None, 2**20))
        return [
            (one.topic, one.sender, one.offset, one.sequence, one.payloads())
            for one in page.batches
        ]


class GatherTests(GatheringCase):
    """What is published at the end of the tick"""

    def test_messages_are_stored_with_their_senders_by_one_call(self) -> None:
        self.first()
        assert self.soon(self.b, b"1", b"2")
        assert self.soon(self.a, b"3")
        assert self.stored() == [("t", b"a", 0, 0, [b"first"])]
        self.turn()
        assert self.stored() == [
            ("t", b"a", 0, 0, [b"first"]),
            ("t", b"b", 1, 1, [b"1", b"2"]),
            ("t", b"a", 3, 3, [b"3"]),
        ]
        assert self.store.appended == [1, 3]
        self.first()
        assert self.stored()[-1] == ("t", b"a", 4, 4, [b"first"])

    def test_they_are_read_from_any_offset(self) -> None:
        self.first()
        for number in range(3):
            assert self.soon(self.b, b"%d" % number, b"")
            assert self.soon(self.a, b"a%d" % number)
        self.turn()
        everything = [
            (run.sender, run.offset + place, payload)
            for run in self.successResultOf(self.store.read(0, None, 2**20)).batches
            for place, payload in enumerate(run.payloads())
        ]
        assert [one[1] for one in everything] == list(range(10))
        assert everything[1:4] == [(b"b", 1, b"0"), (b"b", 2, b""), (b"a", 3, b"a0")]
        for offset in range(10):
            page = self.successResultOf(self.store.read(offset, frozenset("t"), 2**20))
            assert page.next_offset == 10
            found = [
                (run.sender, run.offset + place, payload)
                for run in page.batches
                for place, payload in enumerate(run.payloads())
            ]
            assert found == everything[offset:]
        assert not self.successResultOf(self.store.read(0, frozenset("u"), 2**20)).batches
        self.store.forget("t")
        assert not self.successResultOf(self.store.read(0, None, 2**20)).batches

    def test_they_are_delivered_in_order_by_one_write(self) -> None:
        encoding = MessageEncoding(1)
        bob = self.subscriber(encoding=encoding)
        self.first()
        for number in range(3):
            assert self.soon(self.b, b"%d" % number, bytes(number))
        self.turn()
        assert len(bob.writes) == 1
        (batch,) = self.successResultOf(self.store.read(0, None, 2**20)).batches[:1]
        expected = self.framed(encoding, batch, b"first")
        for number in range(3):
            expected += self.framed(encoding, batch, b"%d" % number)
            expected += self.framed(encoding, batch, bytes(number))
        assert bob.writes == [expected]

    def framed(self, encoding: MessageEncoding, batch: Batch, payload: bytes) -> bytes:
        (head,) = encoding.heads
        data = bytearray(head.encode(len(payload)))
        at = encoding.variable_at
        data[at : at + encoding.variable_size] = encoding.variable(batch)
        return bytes(data) + payload

    def test_each_encoding_that_depends_on_the_sender_gets_it(self) -> None:
        lines = Lines()
        bob = self.subscriber(encoding=lines)
        self.first()
        self.soon(self.b, b"1")
        self.soon(self.a, b"2", b"3")
        self.turn()
        assert bob.writes == [b"first\n1\n2\n3\n"]
        found = [(one.sender, one.offset, one.sequence) for one in lines.batches]
        assert found == [(b"a", 0, 0), (b"b", 1, 1), (b"a", 2, 2)]

    def test_they_are_counted_for_each_publisher(self) -> None:
        self.first()
        self.soon(self.b, b"12", b"3")
        self.turn()
        assert (self.b.messages, self.b.nbytes) == (2, 3)
        assert (self.topic.messages, self.topic.nbytes) == (3, 8)
        assert self.broker.counters.published == 3

    def test_a_message_over_the_limit_of_an_encoding(self) -> None:
        other = self.broker.topics.create("u")
        bob = self.listener.outbox(transport := Transport(), Reader())
        for channel, topic in enumerate((self.topic, other), 1):
            self.router.subscribe(bob, topic, MessageEncoding(channel, limit=2))
        self.a.publish(self.topic, Columns.of([b"1"]))
        for topic, payload in ((self.topic, b"22"), (other, b"333"), (other, b"44")):
            assert self.b.publish_soon(topic, Columns.of([payload]))
        self.turn()
        assert [frame[-2:] for frame in transport.writes] == [b"44"]
        assert len(transport.writes[0]) == 3 * 16 + 5
        assert dict(self.broker.counters.drops) == {("bob", "u", "too-large"): 1}

    def test_unstored_messages(self) -> None:
        self.topic.set_durability(Durability.NONE)
        bob = self.subscriber(encoding=Lines())
        self.first()
        assert self.soon(self.b, b"1")
        self.turn()
        assert bob.writes == [b"first\n1\n"]
        assert self.stored() == []

    def test_more_than_are_gathered_at_once(self) -> None:
        bob = self.subscriber(encoding=Lines())
        self.first()
        for number in range(1000):
            if not self.soon(self.b, b"%d" % number):
                self.b.publish(self.topic, Columns.of([b"%d" % number]))
        self.turn()
        assert b"".join(bob.writes).split() == [b"first", *(b"%d" % n for n in range(1000))]
        # 64 KiB, of which each takes 64 bytes and those of its payload.
        assert max(self.store.appended) == 979
        assert [one[2] for one in self.stored()] == list(range(1001))

    def test_the_first_message_after_a_tick_of_several(self) -> None:
        self.first()
        for _ in range(3):
            assert self.soon(self.b, b"1")
        self.turn()
        assert self.soon(self.a, b"2")
        assert self.store.next_offset == 4
        self.turn()
        assert self.stored()[-1] == ("t", b"a", 4, 4, [b"2"])
        assert not self.router.gathers, "there was only one"

    def test_a_tick_after_one_of_several_looks_again(self) -> None:
        self.subscriber(encoding=Lines())
        asked: list[Callable[[], bool]] = []
        self.broker.dispatcher.gathering.look_again = asked.append
        self.first()
        for _ in range(3):
            assert self.soon(self.b, b"1")
        assert asked == []
        self.turn()
        assert self.soon(self.a, b"2")
        assert self.soon(self.b, b"3")
        (while_true,) = asked
        assert while_true()
        # Messages that were not gathered wait for the end of the tick.
        self.first()
        assert self.soon(self.b, b"4")
        assert not while_true()
        self.turn()
        assert not while_true()
        self.first()
        assert self.soon(self.b, b"5")
        assert len(asked) == 1, "the tick before had one"


class OrderTests(GatheringCase):
    """A publisher's messages keep their order"""

    def test_before_a_message_that_is_published_at_once(self) -> None:
        other = self.broker.topics.create("u")
        bob = self.subscriber(self.topic, other, encoding=Lines())
        self.first()
        self.soon(self.b, b"1")
        self.b.publish(other, Columns.of([b"2"]))
        assert self.soon(self.b, b"3")
        assert self.store.next_offset == 3
        self.turn()
        assert bob.writes == [b"first\n1\n2\n3\n"]
        assert [one[4] for one in self.stored()] == [[b"first"], [b"1"], [b"2"], [b"3"]]

    def test_before_a_read_of_several_topics(self) -> None:
        other = self.broker.topics.create("u")
        mix = self.router.mix((self.topic, other))
        self.first()
        self.soon(self.b, b"1")
        large = Columns.of([b"2", bytes(4096)], [0, 1])
        assert self.b.publish_mixed(mix, large) is not None
        assert not self.soon(self.b, b"4")
        assert self.stored()[1][4] == [b"1"]
        assert self.b.publish_mixed(mix, Columns.of([b"5", b"6"], [0, 1])) is not None
        assert self.soon(self.b, b"7"), "it may be the first of many small ones"

    def test_before_subscriptions_change(self) -> None:
        self.first()
        self.soon(self.b, b"1")
        transport = Transport()
        outbox = self.listener.outbox(transport, Reader())
        self.router.subscribe(outbox, self.topic, Lines())
        assert self.store.next_offset == 2
        assert self.soon(self.b, b"2")
        self.router.unsubscribe(outbox, self.topic)
        assert self.soon(self.b, b"3")
        self.turn()
        assert transport.writes == [b"2\n"]
        assert self.store.next_offset == 4

    def test_before_the_topic_ends(self) -> None:
        bob = self.subscriber(encoding=Lines())
        self.first()
        self.soon(self.b, b"1")
        self.broker.topic_lifecycle.end(self.topic)
        assert bob.writes == [b"first\n1\n"]
        assert not self.soon(self.b, b"2")

    def test_before_the_durability_changes(self) -> None:
        other = self.broker.topics.create("u")
        self.first()
        assert self.soon(self.b, b"1")
        assert self.b.publish_soon(other, Columns.of([b"2"]))
        rules = DurabilityRules([("t", Durability.NONE)])
        deque(self.broker.topic_lifecycle.reconfigure(rules))
        self.turn()
        assert [one[4] for one in self.stored()] == [[b"first"], [b"1"], [b"2"]]


class RefusalTests(GatheringCase):
    """What is not gathered"""

    def assert_not_gathered(self) -> None:
        assert not self.soon(self.b, b"1")
        assert self.b.messages == 0
        self.turn()
        assert self.store.next_offset == 1

    def test_the_first_message_of_a_tick(self) -> None:
        assert not self.router.gathers
        self.first()
        assert self.router.gathers
        self.turn()
        # Without a subscriber nothing was to be flushed.
        self.router.flush()
        assert not self.router.gathers

    def test_a_large_message(self) -> None:
        self.first()
        assert not self.soon(self.b, bytes(4033))
        assert not self.soon(self.b, bytes(4097))
        assert self.soon(self.b, bytes(4032))
        assert not self.soon(self.b, bytes(4033))
        assert self.soon(self.b, *[b""] * 64)
        assert not self.soon(self.b, *[b""] * 65)

    def test_messages_after_a_refused_one(self) -> None:
        self.store.failing = True
        with pytest.raises(HistoryUnavailable):
            self.first()
        assert not self.router.gathers

    def test_a_topic_that_is_blocked(self) -> None:
        self.first()
        self.topic.block("bob")
        self.assert_not_gathered()

    def test_at_the_bound_of_memory(self) -> None:
        self.first()
        self.broker.memory.add(2_000_000)
        self.assert_not_gathered()

    def test_while_publishers_are_held(self) -> None:
        self.first()
        self.router.gate.close()
        self.assert_not_gathered()

    def test_while_the_history_is_behind(self) -> None:
        self.first()
        self.store.gate.close()
        self.assert_not_gathered()

    def test_a_topic_of_another_broker(self) -> None:
        self.first()
        self.topic.set_hosted(False)
        self.assert_not_gathered()

    def test_a_publisher_with_a_rate(self) -> None:
        limited = make_listener(self.broker, rate_messages=10).publisher(Held(), b"b")
        self.first()
        assert not self.soon(limited, b"1")

    def test_a_long_sender(self) -> None:
        self.first()
        assert not self.b.publish_soon(self.topic, Columns.of([b"1"]), bytes(256))
        assert self.b.publish_soon(self.topic, Columns.of([b"1"]), bytes(255))

    def test_a_publisher_that_cannot_be_held(self) -> None:
        datagrams = self.listener.publisher(None, b"b")
        self.first()
        assert not self.soon(datagrams, b"1")

    def test_a_topic_that_is_not_stored_as_those_before(self) -> None:
        other = self.broker.topics.create("u")
        other.set_durability(Durability.NONE)
        self.first()
        assert self.soon(self.b, b"1")
        assert not self.b.publish_soon(other, Columns.of([b"2"]))
        assert self.soon(self.b, b"3")

    def test_topics_with_more_subscribers_than_are_looked_at_in_a_tick(self) -> None:
        topics = [self.topic, self.broker.topics.create("u")]
        self.subscriber(*topics, encoding=MessageEncoding(1))
        columns = Columns.of([b"1", b"2"], [0, 1])
        self.first()
        with patch.object(passing_mix, "_SUBSCRIPTIONS", 1):
            assert not self.b.publish_mixed_soon(topics, columns)
        assert self.b.publish_mixed_soon(topics, columns)

    def test_a_client_without_the_right_for_one_of_the_topics(self) -> None:
        other = self.broker.topics.create("u")
        limited = make_listener(self.broker, allow_publish="u").publisher(Held(), b"b")
        self.first()
        assert limited.publish_soon(other, Columns.of([b"1"]))
        with pytest.raises(NotAuthorized):
            self.soon(limited, b"2")
        assert limited.publish_soon(other, Columns.of([b"3"]))
        self.turn()
        assert [one[4] for one in self.stored()] == [[b"first"], [b"1"], [b"3"]]

    def test_a_client_without_the_right(self) -> None:
        limited = make_listener(self.broker, allow_publish="other/*").publisher(Held(), b"b")
        self.first()
        with pytest.raises(NotAuthorized):
            self.soon(limited, b"1")
        self.turn()
        assert self.store.next_offset == 1

    def test_a_client_with_other_rights_than_the_one_before(self) -> None:
        limited = make_listener(self.broker, allow_publish="other/*").publisher(Held(), b"b")
        self.first()
        assert self.soon(self.a, b"1")
        with pytest.raises(NotAuthorized):
            self.soon(limited, b"2")
        assert self.soon(self.a, b"3")
        self.turn()
        assert [one[4] for one in self.stored()] == [[b"first"], [b"1"], [b"3"]]

    def test_a_right_that_is_taken_away_meanwhile(self) -> None:
        self.first()
        assert self.soon(self.a, b"1")
        self.listener.reconfigure({**self.listener.settings, "allow-publish": ["other/*"]})
        with pytest.raises(NotAuthorized):
            self.soon(self.a, b"2")

    def test_a_history_that_fails_meanwhile(self) -> None:
        bob = self.subscriber(encoding=Lines())
        self.first()
        self.soon(self.b, b"1", b"2")
        self.store.failing = True
        self.turn()
        assert bob.writes == [b"first\n1\n2\n"]
        assert self.store.next_offset == 1
        drops = dict(self.broker.counters.drops)
        assert drops == {("history", "t", HistoryUnavailable.reason): 2}


class AlikeTests(GatheringCase):
    """Lone messages like the last ones of their publisher"""

    def setUp(self) -> None:
        super().setUp()
        self.heads = HeadTable(learn_publish)

    def scanned(self, publisher: Publisher, topic: Topic, payload: bytes) -> bool:
        columns = self.heads.scan(encode(Publish(1, payload)))
        return publisher.publish_soon(topic, columns)

    def alike(self, publisher: Publisher, payload: bytes, channel: int = 1) -> bool:
        return publisher.publish_alike(self.heads, encode(Publish(channel, payload)))

    def test_they_are_gathered_in_order(self) -> None:
        bob = self.subscriber(encoding=Lines())
        self.first()
        assert not self.alike(self.a, b"0"), "nothing is gathered"
        assert self.scanned(self.b, self.topic, b"1")
        assert not self.alike(self.a, b"2"), "the publisher has not published the like"
        assert self.scanned(self.a, self.topic, b"2")
        assert self.alike(self.a, b"3")
        assert self.alike(self.b, b"4")
        assert (self.b.messages, self.b.nbytes, self.topic.messages) == (2, 2, 5)
        self.turn()
        assert bob.writes == [b"first\n1\n2\n3\n4\n"]
        assert not self.alike(self.b, b"5"), "nothing is gathered"
        assert self.scanned(self.a, self.topic, b"5"), "several were gathered in the tick before"
        assert self.alike(self.b, b"6")
        assert not self.alike(self.b, b"7", channel=2)
        self.turn()
        assert [one[1] for one in self.stored()] == [b"a", b"b", b"a", b"a", b"b", b"a", b"b"]

    def test_while_another_topic_is_gathered(self) -> None:
        other = self.broker.topics.create("u")
        self.first()
        assert self.scanned(self.b, self.topic, b"1")
        self.a.publish(other, Columns.of([b"2"]))
        assert not self.alike(self.b, b"3"), "nothing is gathered"
        assert self.a.publish_soon(other, Columns.of([b"3"]))
        assert self.alike(self.b, b"4")
        # The publisher has published to that, but not with this head.
        assert self.b.publish_soon(other, Columns.of([b"5"]))
        assert not self.alike(self.b, b"6")
        self.turn()
        assert [(one[0], one[4]) for one in self.stored()] == [
            ("t", [b"first"]), ("t", [b"1"]), ("u", [b"2"]), ("u", [b"3"]), ("t", [b"4"]),
            ("u", [b"5"]),
        ]  # fmt: skip

    def test_a_topic_that_each_message_of_has_to_be_looked_at(self) -> None:
        self.first()
        assert self.scanned(self.a, self.topic, b"1")
        other = self.broker.topics.create("u")
        assert self.b.publish_soon(other, Columns.of([b"2"]))
        self.topic.block("bob")
        assert not self.alike(self.a, b"3")

    def test_a_client_whose_rights_are_taken_away(self) -> None:
        self.first()
        for publisher in (self.a, self.b):
            assert self.scanned(publisher, self.topic, b"1")
        self.listener.reconfigure({**self.listener.settings, "allow-publish": ["other/*"]})
        assert not self.alike(self.a, b"2")

    def test_a_client_with_other_rights_than_the_one_before(self) -> None:
        limited = make_listener(self.broker, allow_publish="t").publisher(Held(), b"c")
        self.first()
        assert self.scanned(limited, self.topic, b"1")
        assert self.scanned(self.a, self.topic, b"2")
        assert self.alike(limited, b"3"), "it has been checked"
        assert self.alike(self.a, b"4")

    def test_a_topic_that_has_ended(self) -> None:
        self.first()
        assert self.scanned(self.a, self.topic, b"1")
        self.broker.topic_lifecycle.end(self.topic)
        assert not self.alike(self.a, b"2")
