"""Audiences of very many topics are made in steps, between which subscriptions change."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing import encoders, topic_mix
from pubsub.broker.routing.encoders import encoder_in_steps
from pubsub.broker.routing.topic_mix import TopicMix
from pubsub.broker.topic_space.topics import Topic
from pubsub.interfaces import Encoding
from tests.profiles import examples
from tests.unit.fakes import Bench, batch_of, mixed_batch
from tests.unit.framed_encoder import Framed

CHANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=3)
"""Outbox, topic, and whether it begins or ends a subscription, between two steps."""


def seen(mix: TopicMix) -> set[tuple[object, ...]]:
    """Return the encodings and the outboxes of each audience."""
    return {
        (tuple(audience.encodings.items()), frozenset(audience.targets))
        for audience in mix.audiences()
    }


class StepTests(SynchronousTestCase):
    """``TopicMix.prepare``"""

    @examples(4)
    @given(st.lists(CHANGES, max_size=12), st.booleans())
    def test_subscriptions_that_change_between_steps(
        self, changes: list[list[tuple[int, int, bool]]], again: bool
    ) -> None:
        bench, topics = Bench(), tuple(Topic(name) for name in "abc")
        outboxes = [one for one in (bench.outbox().outbox for _ in range(4)) if one is not None]

        def change(some: list[tuple[int, int, bool]]) -> None:
            for number, index, begins in some:
                outbox, topic = outboxes[number], topics[index]
                if begins:
                    bench.router.subscribe(outbox, topic, Framed(topic.name.encode()))
                else:
                    bench.router.unsubscribe(outbox, topic)

        change([(number, index, True) for number in range(3) for index in range(number + 1)])
        mix = TopicMix(topics)
        with patch.object(encoders, "_STEP", 1), patch.object(topic_mix, "_NOTIFIED", 1):
            if again:
                mix.audiences()
                change([(3, 0, True), (0, 0, False)])
            left = iter(changes)
            for _ in mix.prepare():
                change(next(left, []))
            assert seen(mix) == seen(TopicMix(topics))
        members = {one for audience in mix.audiences() for one in audience.targets}
        assert members == set(mix._audience_of)

    def test_heads_are_those_of_the_subscribers_of_each_topic(self) -> None:
        """To make those of ten thousand topics takes 0.1 s, and so does to free them."""
        bench, topics = Bench(), tuple(Topic(f"{number}") for number in range(1000))
        outbox = bench.outbox().outbox
        assert outbox is not None
        for number, topic in enumerate(topics):
            bench.router.subscribe(outbox, topic, Framed(bytes([number % 256])))
        mix = TopicMix(topics)
        with patch.object(encoders, "_heads_of", side_effect=AssertionError):
            steps = list(mix.prepare())
            (audience,) = mix.prepared()
            assert mix.wanted_by(outbox) is not None
        assert len(steps) > 1000 / encoders._STEP + 1000 / topic_mix._NOTIFIED
        batch = batch_of([b"x"], "7")
        assert audience.encoder.encode(batch) == (Framed(b"\0").frame(b"x", batch.timestamp), 1)

    def test_a_topic_whose_subscribers_have_left(self) -> None:
        given: dict[int, Encoding] = {0: Framed(b"a"), 2: Framed(b"c")}
        steps = encoder_in_steps(given, 3, lambda index, encoding: None)
        with pytest.raises(StopIteration) as done:
            next(steps)
        batch = batch_of([b"x"])
        frame = Framed(b"a").frame(b"x", batch.timestamp)
        assert done.value.value.encode(batch) == (frame, 1)


class BehindTests(SynchronousTestCase):
    """``Router.route_mixed`` while subscribers are behind"""

    def test_a_read_looks_at_its_own_topics_alone(self) -> None:
        """Otherwise each small read takes 0.1 ms for ten thousand topics of the mix."""
        looked_at: list[Topic] = []

        class Observed(Topic):
            __slots__ = ()

            def __hash__(self) -> int:
                looked_at.append(self)
                return object.__hash__(self)

        bench, topics = Bench(), tuple(Observed(name) for name in "abcd")
        outbox = bench.outbox().outbox
        assert outbox is not None
        for topic in topics:
            bench.router.subscribe(outbox, topic, Framed(topic.name.encode()))
        bench.router.fall_behind(outbox, topics[2])
        mix = TopicMix(topics)
        mix.audiences()
        looked_at.clear()
        bench.router.route_mixed(mix, mixed_batch([("c", b"1"), ("a", b"2")], mix.names, 0))
        assert looked_at == []
        assert [topic.passed for topic in topics] == [0, 0, 1, 0]
