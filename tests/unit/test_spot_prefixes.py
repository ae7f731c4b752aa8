"""Prefixes of topics' names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.topic_space.topic_registry import TopicRegistry
from pubsub.protocols.spot.prefixes import Prefixes

NAMES = st.text("aé\U0010ffff", max_size=4)
PREFIXES = st.binary(max_size=3) | NAMES.map(str.encode)


class PrefixesTests(SynchronousTestCase):
    """Prefixes and the topics that have them"""

    @given(st.lists(st.tuples(st.booleans(), st.booleans(), PREFIXES)), st.lists(NAMES))
    def test_like_a_list(self, changes: list[tuple[bool, bool, bytes]], names: list[str]) -> None:
        prefixes, model = Prefixes(), list[bytes]()
        for adds, all_of_it, prefix in changes:
            if adds:
                prefixes.add(prefix)
                model.append(prefix)
                continue
            left = [one for one in model if one != prefix]
            if not all_of_it and prefix in model:
                left += [prefix] * (model.count(prefix) - 1)
            gone = prefix in model and prefix not in left
            assert prefixes.discard(prefix, all_of_it) is gone
            model = left
        assert set(prefixes) == set(model)
        assert len(prefixes) == len(set(model))
        for name in map(str.encode, names):
            assert prefixes.cover(name) is name.startswith(tuple(model))

    @given(st.sets(NAMES.filter(bool), max_size=200), PREFIXES)
    def test_topics_with_a_prefix(self, names: set[str], prefix: bytes) -> None:
        topics = TopicRegistry(1000, MemoryBudget(0))
        for name in names:
            topics.create(name)
        found = [topic.name.encode() for topic in topics.with_prefix(prefix)]
        assert found == sorted(name for name in map(str.encode, names) if name.startswith(prefix))

    def test_topics_may_come_and_go_meanwhile(self) -> None:
        topics = TopicRegistry(10_000, MemoryBudget(0))
        for number in range(1000):
            topics.create(f"{number:04}")
        found = []
        for topic in topics.with_prefix(b"0"):
            found.append(topic.name)
            topics.remove(topic)
            if topic.name.isdecimal():
                later = f"{int(topic.name) + 100:04}"
                if later.endswith("7") and later in topics:
                    topics.remove(topics.named(later))
                topics.create(f"{topic.name}.")
        assert found == sorted(found)
        assert [name for name in found if not name.endswith(("7", "."))] == [
            f"{number:04}" for number in range(1000) if number % 10 != 7
        ]
