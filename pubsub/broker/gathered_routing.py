"""The routing of gathered messages (see ``gathering.py``), and of those of a ``PassingMix``.

The topics are those of one tick or read, and other ones in the next. So there is no ``TopicMix``
for them, whose audiences are made once and pay with many batches. The subscribers of each topic are
grouped here by the topics that they have, for one batch: in most cases, a few subscribers have all
topics, or each topic has a subscriber of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pubsub.broker.audience import Share
from pubsub.broker.targets import Targets
from pubsub.broker.topics import Recipient
from pubsub.kernel import FrameEncoder

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.encoders import BatchEncoder
    from pubsub.broker.router import Router
    from pubsub.broker.topics import QueuedDelivery, Topic
    from pubsub.kernel import Senders

# Topics that each audience has on average, at least: the work for an audience is that for several
# messages that are routed one by one.
_TOPICS = 3
# Outboxes that are taken out of their groups, at most.
_SPLIT = 256
Encoders = tuple["BatchEncoder", dict[int, FrameEncoder]]
"""An encoder of some outboxes, and what writes the frames of each topic, by its index. The
encodings of an outbox are of one class, so one encoder has the stamp for all of them."""
ByTargets = dict[tuple[Recipient, ...], Encoders]


class GatheredAudience(Targets[Recipient]):
    """Outboxes that receive the same messages of one batch."""

    __slots__ = ("pending",)

    def __init__(self, targets: Iterable[Recipient]) -> None:
        super().__init__(targets)
        self.pending: list[QueuedDelivery] = []


def route_gathered(
    router: Router, topics: Sequence[Topic], batch: Batch, senders: Senders | None = None
) -> None:
    """Route ``batch`` to the subscribers of its ``topics``.

    Its messages are of ``senders``; None if the batch has one sender.
    """
    if len(topics) == 1:
        (topic,) = topics
        for group in topic.groups.values():
            if group.encoder.frames is None:
                break
        else:
            # The frames do not depend on the sender.
            if topic.groups or topic.behind:
                router.route(topic, batch)
            return
    together = None
    if not router.waiting:
        together = _by_targets(topics, batch.columns.largest, senders is None)
    if together is None:
        for part in (batch,) if senders is None else batch.by_sender(senders):
            for index, one in part.runs():
                if topics[index].groups or topics[index].behind:
                    router.route(topics[index], one)
        return
    if len(together) > 1:
        together = _disjoint(together)
    if together is None:
        _route_runs(router, topics, batch)
        return
    indexes = batch.columns.words(of_indexes=True)
    for targets, (encoder, frames) in together.items():
        data, count = FrameEncoder.encode_each(frames, batch.columns, encoder.stamp(batch))
        share = Share(topics, indexes, frozenset(frames))
        router.add(GatheredAudience(targets), data, count, batch.offset, share)
    if router.behind:
        for index, count, _ in batch.columns.totals():
            if topics[index].behind:
                topics[index].passed += count


def _route_runs(router: Router, topics: Sequence[Topic], batch: Batch) -> None:
    """Route consecutive messages of each topic; the senders make no difference."""
    offset = batch.offset
    for index, columns in batch.columns.runs():
        topic, count = topics[index], columns.count
        for group in topic.groups.values():
            writer = group.encoder.writer
            assert writer is not None
            data, _ = writer.encode(columns, group.encoder.stamp(batch))
            router.add(group, data, count, offset, topic)
        if topic.behind:
            topic.passed += count
        if index not in batch.unstored:
            offset += count


def _by_targets(topics: Sequence[Topic], largest: int, one_sender: bool) -> ByTargets | None:
    """Return the encoders of the subscribers of ``topics`` by their outboxes.

    None if their frames depend on more than the time, and the sender if there is only one, or do
    not take messages as large as ``largest``.
    """
    together: ByTargets = {}
    last: tuple[Recipient, ...] = ()
    by_index: dict[int, FrameEncoder] = {}
    for index, topic in enumerate(topics):
        for group in topic.groups.values():
            encoder, targets = group.encoder, group.targets
            frames = encoder.writer if one_sender else encoder.frames
            if frames is None or largest > encoder.limit:
                return None
            if targets != last:
                last = targets
                by_index = together.setdefault(targets, (encoder, {}))[1]
            by_index[index] = frames
    return together


def _disjoint(together: ByTargets) -> ByTargets | None:
    """Return ``together`` with each outbox in one item only; None if that is too much work."""
    number = sum(map(len, together))
    recipients = len(set().union(*together))
    if recipients < number:
        if number > _SPLIT or recipients * _TOPICS > number:
            return None
        alone: ByTargets = {}
        for targets, (encoder, frames) in together.items():
            for recipient in targets:
                alone.setdefault((recipient,), (encoder, {}))[1].update(frames)
        together = alone
    topics = sum([len(frames) for _, frames in together.values()])
    return None if len(together) * _TOPICS > topics else together
