"""A mix of topics notices each change of their states."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from pubsub.broker.routing.mixed_topics import MixedTopics
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topics import Topic


class MixedTopicsTests(TestCase):
    def setUp(self) -> None:
        self.topics = tuple([Topic(name) for name in "abc"])
        for topic in self.topics:
            topic.set_hosted(True)
        self.mix = MixedTopics(self.topics, tuple("abc"))
        assert self.mix.uniform

    def test_a_topic_that_another_broker_hosts(self) -> None:
        self.topics[2].set_hosted(False)
        assert not self.mix.uniform
        self.topics[2].set_hosted(True)
        assert self.mix.uniform

    def test_a_topic_that_is_not_stored(self) -> None:
        self.topics[0].set_durability(Durability.NONE)
        assert not self.mix.uniform
        assert not self.mix.stored_alike
        assert self.mix.durability is Durability.ASYNC

    def test_a_topic_that_is_stored_otherwise(self) -> None:
        self.topics[1].set_durability(Durability.SYNC)
        assert not self.mix.uniform
        assert self.mix.stored_alike
        assert self.mix.durability is Durability.SYNC

    def test_topics_that_are_not_stored_are_alike(self) -> None:
        for topic in self.topics:
            topic.set_durability(Durability.NONE)
        assert self.mix.uniform
        assert self.mix.stored_alike
        assert self.mix.durability is Durability.NONE

    def test_after_a_change_all_are_looked_at_when_all_have_been_asked_for(self) -> None:
        assert self.mix.is_known_uniform(1)
        self.topics[1].block(self)
        self.topics[1].unblock(self)
        assert not self.mix.is_known_uniform(2)
        assert self.mix.is_known_uniform(1)
        self.topics[1].block(self)
        assert not self.mix.is_known_uniform(2)
        assert not self.mix.is_known_uniform(2)

    def test_a_subscriber_that_is_too_slow(self) -> None:
        slow, slower = object(), object()
        self.topics[1].block(slow)
        assert not self.mix.uniform
        self.topics[1].block(slower)
        self.topics[1].unblock(slow)
        assert not self.mix.uniform
        self.topics[1].unblock(slower)
        assert self.mix.uniform
