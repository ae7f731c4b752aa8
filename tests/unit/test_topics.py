"""Topics: names, look-up by id and UUID, the limit, publishers that are held."""

from __future__ import annotations

from uuid import uuid5

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.topic_space.topic_names import TOPIC_NAMESPACE, fnv1a32, topic_name
from pubsub.broker.topic_space.topic_registry import TOPIC_BYTES, TopicRegistry
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import InvalidTopicName, LimitReached, MemoryExhausted, TopicNotFound
from tests.unit.fakes import Bench, Held, Lines
from tests.unit.raising import raised


class ProvisionalTests(SynchronousTestCase):
    """create_provisional and withdraw"""

    def test_a_topic_ends_and_another_has_its_name(self) -> None:
        for order in (1, -1):
            memory = MemoryBudget(0)
            topics = TopicRegistry(10, memory)
            first = topics.create_provisional("a")
            topics.remove(first)
            second = topics.create_provisional("a")
            for topic in (first, second)[::order]:
                if topics.withdraw(topic):
                    topics.remove(topic)
            assert ("a" in topics, memory.used) == (False, 0), order

    def test_a_topic_ends_and_another_is_needed(self) -> None:
        topics = TopicRegistry(10, MemoryBudget(0))
        first = topics.create_provisional("a")
        topics.remove(first)
        second = topics.create("a")
        assert not topics.withdraw(first)
        assert topics.holds(second)

    def test_a_look_up_does_not_need_it(self) -> None:
        topics = TopicRegistry(10, MemoryBudget(0))
        topic = topics.create_provisional("a")
        assert topics.by_id(topic.id) is topics.existing("a") is topic
        assert topics.withdraw(topic)

    def test_two_need_it(self) -> None:
        topics = TopicRegistry(10, MemoryBudget(0))
        topic = topics.create_provisional("a")
        assert topics.create_provisional("a") is topic
        assert [topics.withdraw(topic) for _ in range(2)] == [False, True]

    def test_a_request_that_is_refused_does_not_need_it(self) -> None:
        topics = TopicRegistry(10, MemoryBudget(0))
        topic = topics.create_provisional("a")

        def refuse(name: str) -> None:
            raise LimitReached(name)

        topics.claim_checks.append(refuse)
        raised(LimitReached, topics.create, "a")
        raised(LimitReached, topics.claim, topic)
        assert topics.withdraw(topic)


class NameTests(SynchronousTestCase):
    """topic_name"""

    def test_a_name_has_1_to_255_bytes(self) -> None:
        assert topic_name("a") == "a"
        assert topic_name("a" * 255) == "a" * 255
        for name in ("", "a" * 256):
            with pytest.raises(InvalidTopicName):
                topic_name(name)

    def test_the_limit_counts_bytes_and_not_characters(self) -> None:
        longest = "é" * 127 + "x"
        assert topic_name(longest) == longest
        with pytest.raises(InvalidTopicName, match="256"):
            topic_name("é" * 128)
        with pytest.raises(InvalidTopicName):
            topic_name("🐬" * 64)

    def test_bytes_become_the_text_they_encode(self) -> None:
        assert topic_name("zoë/日本".encode()) == "zoë/日本"
        assert topic_name(b"\0") == "\0"

    def test_bytes_that_are_not_utf8_are_refused(self) -> None:
        for raw in (b"\xff", b"\xc3", b"ok\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
            with pytest.raises(InvalidTopicName, match="UTF-8"):
                topic_name(raw)

    def test_a_surrogate_is_refused(self) -> None:
        with pytest.raises(InvalidTopicName, match="UTF-8"):
            topic_name("a\ud800")

    @given(st.binary(max_size=300))
    @example(b"")
    @example(b"a" * 255)
    @example(b"a" * 256)
    @example(("é" * 127).encode() + b"a")
    @example(("é" * 128).encode())
    @example(b"\0")
    @example(b"\xed\xa0\x80")
    def test_any_bytes_are_a_name_or_refused(self, raw: bytes) -> None:
        try:
            name = topic_name(raw)
        except InvalidTopicName:
            refused = True
        else:
            refused = False
            assert name.encode() == raw
        try:
            raw.decode()
        except UnicodeDecodeError:
            assert refused
        else:
            assert refused == (not 1 <= len(raw) <= 255)


class HashTests(SynchronousTestCase):
    """fnv1a32, with published values"""

    def test_known_values(self) -> None:
        known = {
            b"": 0x811C9DC5,
            b"a": 0xE40C292C,
            b"b": 0xE70C2DE5,
            b"c": 0xE60C2C52,
            b"fo": 0x6222E842,
            b"foo": 0xA9F37ED7,
            b"foobar": 0xBF9CF968,
        }
        assert {data: fnv1a32(data) for data in known} == known

    @given(st.binary(), st.integers(0, 255))
    @example(b"", 0)
    @example(b"\xff" * 100, 255)
    def test_each_byte_is_one_step_of_the_hash(self, data: bytes, byte: int) -> None:
        expected = ((fnv1a32(data) ^ byte) * 16777619) % 2**32
        assert fnv1a32(data + bytes([byte])) == expected


class RegistryTests(SynchronousTestCase):
    """TopicRegistry"""

    def setUp(self) -> None:
        self.memory = MemoryBudget(0)
        self.topics = TopicRegistry(3, self.memory)

    def test_a_topic_is_created_once(self) -> None:
        topic = self.topics.create("news")
        assert self.topics.create(b"news") is topic
        assert len(self.topics) == 1
        assert list(self.topics) == [topic]
        assert "news" in self.topics
        assert "other" not in self.topics

    def test_a_topic_is_found_by_name_and_id(self) -> None:
        topic = self.topics.create("zoë")
        assert self.topics.named("zoë") is topic
        assert self.topics.by_id(fnv1a32("zoë".encode())) is topic
        assert topic.uuid == uuid5(TOPIC_NAMESPACE, "zoë")

    def test_an_unknown_topic_is_not_found(self) -> None:
        self.topics.create("news")
        with pytest.raises(TopicNotFound):
            self.topics.named("old")
        with pytest.raises(TopicNotFound):
            self.topics.by_id(0)

    def test_an_id_of_two_names_refers_to_the_first(self) -> None:
        assert fnv1a32(b"costarring") == fnv1a32(b"liquid")
        first = self.topics.create("liquid")
        second = self.topics.create("costarring")
        assert first is not second
        assert self.topics.by_id(second.id) is first

    def test_the_limit_refuses_new_topics_only(self) -> None:
        made = [self.topics.create(name) for name in "abc"]
        with pytest.raises(LimitReached):
            self.topics.create("d")
        assert self.topics.create("a") is made[0]
        assert "d" not in self.topics
        assert len(self.topics) == 3

    def test_an_invalid_name_creates_nothing(self) -> None:
        with pytest.raises(InvalidTopicName):
            self.topics.create(b"\xff")
        assert len(self.topics) == 0
        assert self.memory.used == 0

    def test_every_topic_is_charged_once(self) -> None:
        self.topics.create("a")
        self.topics.create("a")
        self.topics.create("b")
        assert self.memory.used == 2 * TOPIC_BYTES

    def test_at_the_memory_bound_new_topics_are_refused(self) -> None:
        memory = MemoryBudget(TOPIC_BYTES)
        topics = TopicRegistry(10, memory)
        topic = topics.create("a")
        with pytest.raises(MemoryExhausted):
            topics.create("b")
        assert topics.create("a") is topic
        assert "b" not in topics
        assert memory.used == TOPIC_BYTES


class RemovalTests(SynchronousTestCase):
    """TopicRegistry.remove and watch"""

    def setUp(self) -> None:
        self.memory = MemoryBudget(0)
        self.topics = TopicRegistry(2, self.memory)

    def test_a_removed_topic_is_not_found_and_not_charged(self) -> None:
        topic, other = self.topics.create("news"), self.topics.create("other")
        self.topics.remove(topic)
        assert list(self.topics) == [other]
        assert "news" not in self.topics
        with pytest.raises(TopicNotFound):
            self.topics.named("news")
        with pytest.raises(TopicNotFound):
            self.topics.by_id(topic.id)
        assert self.memory.used == TOPIC_BYTES

    def test_removing_it_again_changes_nothing(self) -> None:
        topic = self.topics.create("news")
        self.topics.remove(topic)
        self.topics.remove(topic)
        self.topics.remove(Topic("never there"))
        assert self.memory.used == 0

    def test_a_removal_makes_room(self) -> None:
        topic = self.topics.create("a")
        self.topics.create("b")
        self.topics.remove(topic)
        self.topics.create("c")
        with pytest.raises(LimitReached):
            self.topics.create("d")

    def test_the_name_is_free_for_a_new_topic(self) -> None:
        topic = self.topics.create("news")
        self.topics.remove(topic)
        again = self.topics.create("news")
        assert again is not topic
        assert self.topics.by_id(topic.id) is again
        self.topics.remove(again)
        assert self.memory.used == 0

    def test_a_shared_id_is_freed_by_the_topic_it_refers_to(self) -> None:
        first, second = self.topics.create("liquid"), self.topics.create("costarring")
        self.topics.remove(second)
        assert self.topics.by_id(first.id) is first
        second = self.topics.create("costarring")
        self.topics.remove(first)
        with pytest.raises(TopicNotFound):
            self.topics.by_id(first.id)

    def test_watchers_see_every_new_topic_once(self) -> None:
        self.topics.create("before")
        seen: list[Topic] = []
        self.topics.watch(seen.append)
        topic = self.topics.create("news")
        self.topics.create("news")
        self.topics.create("before")
        assert seen == [topic]
        self.topics.remove(topic)
        assert seen == [topic, self.topics.create("news")]


class HostTests(SynchronousTestCase):
    """hosted, history_readers, has_readers"""

    def test_an_offered_topic_has_no_host_until_it_is_used(self) -> None:
        topics = TopicRegistry(3, MemoryBudget(0))
        topic = topics.create("news", hosted=False)
        assert not topic.hosted
        topics.create("news", hosted=False)
        assert not topic.hosted
        topics.create("news")
        assert bool(topic.hosted)
        topics.create("news", hosted=False)
        assert bool(topic.hosted)

    def test_a_topic_is_wanted_while_it_has_readers(self) -> None:
        bench, topic = Bench(), Topic("news")
        box = bench.outbox().outbox
        assert box is not None
        assert not topic.has_readers
        bench.router.subscribe(box, topic, Lines())
        bench.router.read_history(topic)
        bench.router.unsubscribe(box, topic)
        assert bool(topic.has_readers)
        bench.router.leave_history(topic)
        assert not topic.has_readers
        bench.router.leave_history(topic)
        bench.router.read_history(topic)
        assert bool(topic.has_readers)


class BlockTests(SynchronousTestCase):
    """Topic.block, unblock and wait"""

    def setUp(self) -> None:
        self.topic = Topic("news")
        self.publishers = [Held(), Held()]

    def test_publishers_are_released_by_the_last_blocker(self) -> None:
        slow, slower = object(), object()
        self.topic.block(slow)
        self.topic.block(slower)
        self.topic.block(slower)
        for publisher in self.publishers:
            self.topic.wait(publisher)
            assert publisher.reasons == {self.topic}
        self.topic.unblock(slower)
        assert [p.releases for p in self.publishers] == [0, 0]
        self.topic.unblock(slow)
        assert [p.releases for p in self.publishers] == [1, 1]
        assert [p.reasons for p in self.publishers] == [set(), set()]

    def test_publishers_are_released_once(self) -> None:
        blocker = object()
        self.topic.block(blocker)
        self.topic.wait(self.publishers[0])
        self.topic.unblock(blocker)
        self.topic.unblock(blocker)
        assert self.publishers[0].releases == 1

    def test_unblocking_without_a_block_changes_nothing(self) -> None:
        self.topic.block(object())
        self.topic.wait(self.publishers[0])
        self.topic.unblock(object())
        assert self.publishers[0].releases == 0

    def test_a_publisher_may_wait_again_while_it_is_released(self) -> None:
        topic, blocker = self.topic, object()

        class Eager(Held):
            def release(self, reason: object) -> None:
                super().release(reason)
                topic.block(blocker)
                topic.wait(self)

        publisher = Eager()
        topic.block(blocker)
        topic.wait(publisher)
        topic.unblock(blocker)
        assert publisher.releases == 1
        assert publisher.reasons == {topic}
        assert set(topic.waiting) == {publisher}

    def test_a_publisher_does_not_wait_for_its_own_outbox(self) -> None:
        """A broker to and from which a topic's messages flow would wait for itself."""
        topic, own, other = self.topic, object(), object()
        publisher = Held()
        topic.block(own)
        assert topic.blocked()
        assert not topic.blocked(own)
        topic.block(other)
        assert topic.blocked(own)
        topic.wait(publisher, own)
        topic.unblock(other)
        assert publisher.releases == 1
        assert topic.blockers == {own}
