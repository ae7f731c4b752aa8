"""Audiences: groups, mixes, and the topics that the messages of a delivery belong to."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.audience import (
    WRITE_BYTES,
    DeliveryShares,
    Share,
    joined,
)
from pubsub.broker.routing.encoders import make_encoder
from pubsub.broker.routing.mixed_audience import MixedAudience
from pubsub.broker.routing.topic_mix import TopicMix
from pubsub.broker.topic_space.topics import (
    DeliverySource,
    QueuedDelivery,
    Recipient,
    SubscriberGroup,
    Topic,
)
from pubsub.interfaces import Encoding
from tests.unit.fakes import Bench, Lines

A, B, C = Topic("a"), Topic("b"), Topic("c")


def counts(source: DeliverySource, count: int = 0) -> dict[str, int]:
    return {topic.name: number for topic, number in source.counts(count)}


def indexes(*numbers: int) -> bytes:
    """Return the indexes of as many messages of each topic."""
    return array("I", [n for n, count in enumerate(numbers) for _ in range(count)]).tobytes()


def topics(source: DeliverySource) -> set[str]:
    return {topic.name for topic in source.topics}


class SourceTests(SynchronousTestCase):
    """The messages of each topic in a delivery"""

    def setUp(self) -> None:
        self.share = Share((A, B, C), indexes(2, 3, 4), frozenset({0, 2}))

    def test_a_topic_is_the_source_of_its_own_messages(self) -> None:
        assert (topics(A), counts(A, 5)) == ({"a"}, {"a": 5})

    def test_a_share_has_the_topics_that_are_wanted(self) -> None:
        assert topics(self.share) == {"a", "c"}
        assert counts(self.share) == {"a": 2, "c": 4}

    def test_a_topic_without_messages_has_no_share(self) -> None:
        share = Share((A, B, C), indexes(0, 0, 4), frozenset({0, 2}))
        assert (topics(share), counts(share)) == ({"c"}, {"c": 4})

    def test_a_share_without_some_messages(self) -> None:
        left = self.share.without({0: 1, 1: 3})
        assert counts(left) == {"a": 1, "c": 4}
        assert counts(self.share) == {"a": 2, "c": 4}

    def test_a_share_without_any_messages_of_a_topic(self) -> None:
        left = self.share.without({0: 2})
        assert (topics(left), counts(left)) == ({"c"}, {"c": 4})

    def test_shares_are_added(self) -> None:
        other = Share((B, C), indexes(5, 6), frozenset({0, 1}))
        shares = DeliveryShares([self.share, other, self.share])
        assert topics(shares) == {"a", "b", "c"}
        assert counts(shares) == {"a": 4, "b": 5, "c": 14}


class JoinTests(SynchronousTestCase):
    """joined"""

    def test_no_deliveries(self) -> None:
        assert list(joined([])) == []

    def test_a_single_delivery_is_returned(self) -> None:
        delivery: QueuedDelivery = (1, b"x", 1, 7, A)
        (found,) = joined([delivery])
        assert found is delivery

    def test_neighbours_are_one_delivery(self) -> None:
        pending: list[QueuedDelivery] = [(1, b"x", 1, 7, A), (3, b"yz", 2, 9, A)]
        assert list(joined(pending)) == [(1, b"xyz", 3, 7, A)]

    def test_the_topics_of_neighbours_are_added(self) -> None:
        one = Share((A, B), indexes(1, 1), frozenset({0, 1}))
        other = Share((A, B), indexes(2, 0), frozenset({0, 1}))
        ((order, data, count, offset, source),) = joined(
            [(1, b"x", 2, 7, one), (2, b"y", 2, 9, other)]
        )
        assert (order, data, count, offset) == (1, b"xy", 4, 7)
        assert counts(source) == {"a": 3, "b": 1}

    def test_pieces_are_bounded(self) -> None:
        large = bytes(WRITE_BYTES // 2 + 1)
        pending: list[QueuedDelivery] = [(n, large, 1, n, A) for n in range(5)]
        assert [(o, len(data), n, at) for o, data, n, at, _ in joined(pending)] == [
            (0, 2 * len(large), 2, 0), (2, 2 * len(large), 2, 2), (4, len(large), 1, 4),
        ]  # fmt: skip

    def test_a_piece_that_is_one_delivery_is_not_copied(self) -> None:
        large = bytes(WRITE_BYTES)
        pending: list[QueuedDelivery] = [
            (1, large, 1, 1, A),
            (2, b"x", 1, 2, A),
            (3, b"y", 1, 3, A),
        ]
        first, second = joined(pending)
        assert first is pending[0]
        assert second == (2, b"xy", 2, 2, A)


class MixCase(SynchronousTestCase):
    """A router with topics."""

    def setUp(self) -> None:
        self.bench = Bench()
        self.topics = tuple(Topic(name) for name in "abc")

    def outbox(self, names: str = "", encoding: Lines | None = None) -> Recipient:
        outbox = self.bench.outbox().outbox
        assert outbox is not None
        for topic in self.topics:
            if topic.name in names:
                self.bench.router.subscribe(outbox, topic, encoding or Lines())
        return outbox


class GroupTests(MixCase):
    """SubscriberGroup"""

    def test_targets_do_not_change_while_they_are_iterated_over(self) -> None:
        one, other = self.outbox(), self.outbox()
        group = SubscriberGroup(A, Lines())
        group.add(one)
        targets = group.targets
        assert group.targets is targets
        group.add(other)
        assert (targets, group.targets) == ((one,), (one, other))
        group.discard(one)
        group.discard(one)
        assert (len(group), list(group), group.targets) == (1, [other], (other,))


class MixTests(MixCase):
    """TopicMix"""

    def found(self, mix: TopicMix) -> dict[frozenset[str], tuple[Recipient, ...]]:
        """Return the outboxes of each set of topics."""
        return {
            frozenset(mix.names[index] for index in audience.wanted): audience.targets
            for audience in mix.audiences()
        }

    def test_subscribers_of_the_same_topics_are_one_audience(self) -> None:
        everything = [self.outbox("abc") for _ in range(3)]
        some = [self.outbox("ac") for _ in range(2)]
        self.outbox()
        mix = TopicMix(self.topics)
        assert mix.names == ("a", "b", "c")
        assert self.found(mix) == {
            frozenset("abc"): tuple(everything),
            frozenset("ac"): tuple(some),
        }

    def test_encodings_are_distinguished(self) -> None:
        self.outbox("ab", Lines(b"1"))
        self.outbox("ab", Lines(b"2"))
        mixed = self.outbox("a", Lines(b"1"))
        self.bench.router.subscribe(mixed, self.topics[1], Lines(b"2"))
        audiences = TopicMix(self.topics).audiences()
        assert [len(audience.targets) for audience in audiences] == [1, 1, 1]
        assert {audience.wanted for audience in audiences} == {frozenset({0, 1})}

    def test_audiences_are_computed_again_only_after_a_change(self) -> None:
        one = self.outbox("ab")
        mix = TopicMix(self.topics)
        before = mix.audiences()
        assert mix.audiences() is before
        other = self.outbox("c")
        assert self.found(mix) == {frozenset("ab"): (one,), frozenset("c"): (other,)}
        self.bench.router.unsubscribe(one, self.topics[0])
        assert self.found(mix) == {frozenset("b"): (one,), frozenset("c"): (other,)}

    def test_a_removed_subscriber_is_not_kept(self) -> None:
        gone = self.outbox("ab")
        mix = TopicMix(self.topics)
        assert self.found(mix) == {frozenset("ab"): (gone,)}
        self.bench.router.forget(gone)
        # Without waiting for the next messages, as it may not come back.
        assert mix._audience_of == {}
        assert self.found(mix) == {}

    def test_a_subscriber_of_other_topics_is_not_kept_either(self) -> None:
        """The mix does not learn that its other subscription ends."""
        gone = self.outbox("abc")
        mix = TopicMix(self.topics[:2])
        assert len(self.found(mix)) == 1
        self.bench.router.forget(gone)
        assert (mix._audience_of, mix._changed) == ({}, {})

    def test_a_subscriber_that_came_after_the_last_messages_is_not_kept(self) -> None:
        mix = TopicMix(self.topics[:2])
        mix.audiences()
        gone = self.outbox("abc")
        assert list(mix._changed) == [gone]
        self.bench.router.unsubscribe(gone, self.topics[0])
        assert list(mix._changed) == [gone]
        self.bench.router.unsubscribe(gone, self.topics[1])
        assert mix._changed == {}

    def test_a_subscriber_that_leaves_while_audiences_are_made_is_not_kept(self) -> None:
        leaving = self.outbox("abc")
        mix = TopicMix(self.topics[:2])
        steps = mix.prepare()
        next(steps)
        for topic in self.topics[:2]:
            self.bench.router.unsubscribe(leaving, topic)
        assert list(steps)
        assert (mix._audience_of, mix._changed) == ({}, {})
        assert mix.audiences() == ()

    def test_a_change_moves_its_subscriber_only(self) -> None:
        outboxes = [self.outbox("ab") for _ in range(300)]
        mix = TopicMix(self.topics)
        (everything,) = mix.audiences()
        looked_at: list[Recipient] = []
        encodings_of = TopicMix._encodings_of

        def count(mix: TopicMix, recipient: Recipient) -> dict[int, Encoding]:
            looked_at.append(recipient)
            return encodings_of(mix, recipient)

        self.patch(TopicMix, "_encodings_of", count)  # type: ignore[no-untyped-call]
        self.bench.router.unsubscribe(outboxes[0], self.topics[0])
        self.bench.router.subscribe(outboxes[1], self.topics[2], Lines())
        self.bench.router.subscribe(outboxes[0], self.topics[2], Lines())
        assert self.found(mix) == {
            frozenset("ab"): tuple(outboxes[2:]),
            frozenset("bc"): (outboxes[0],),
            frozenset("abc"): (outboxes[1],),
        }
        assert mix.audiences()[0] is everything
        assert looked_at == outboxes[:2]

    def test_a_mix_that_is_not_used_is_released(self) -> None:
        mix = TopicMix(self.topics)
        mix.audiences()
        outboxes = [self.outbox("abc") for _ in range(100)]
        assert not mix._changed
        assert [topic._observers for topic in self.topics] == [None] * 3
        assert self.found(mix) == {frozenset("abc"): tuple(outboxes)}

    @given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.integers(0, 3))))
    def test_changed_audiences_equal_newly_made_ones(
        self, changes: list[tuple[int, int, int]]
    ) -> None:
        bench, topics = Bench(), tuple(Topic(name) for name in "abc")
        outboxes = [one for one in (bench.outbox().outbox for _ in range(8)) if one is not None]
        mix = TopicMix(topics)
        for number, index, change in changes:
            outbox, topic = outboxes[number], topics[index]
            if change == 0:
                mix.audiences()
            elif change == 1:
                bench.router.unsubscribe(outbox, topic)
            else:
                bench.router.subscribe(outbox, topic, Lines(b"%d" % change))

        def seen(mix: TopicMix) -> set[tuple[object, ...]]:
            return {
                (tuple(audience.encodings.items()), frozenset(audience.targets))
                for audience in mix.audiences()
            }

        assert seen(mix) == seen(TopicMix(topics))

    def test_a_change_of_another_topic_changes_nothing(self) -> None:
        self.outbox("ab")
        mix = TopicMix(self.topics[:2])
        before = mix.audiences()
        self.outbox("c")
        assert mix.audiences() is before

    def test_no_subscribers_are_no_audiences(self) -> None:
        assert TopicMix(self.topics).audiences() == ()

    def test_the_topics_of_an_audience(self) -> None:
        audience = MixedAudience(
            {0: Lines(), 2: Lines()}, 3, make_encoder([Lines(), None, Lines()])
        )
        assert audience.wanted == frozenset({0, 2})
        assert audience.flags == b"\x01\x00\x01"
        assert audience.targets == ()
        assert audience.pending == []
