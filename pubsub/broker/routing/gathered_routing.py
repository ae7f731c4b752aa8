"""The routing of gathered messages (see ``gathering.py``), and of those of a ``PassingMix``.

The topics are those of one tick or read, and other ones in the next. So there is no ``TopicMix``
for them, whose audiences are made once and pay with many batches. The subscribers of each topic are
grouped here by the topics that they have, for one batch: in most cases, a few subscribers have all
topics, or each topic has a subscriber of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub.broker.routing.encoders import stamps_of
from pubsub.broker.routing.gathered_audience import (
    add_groups,
    by_targets,
    deliveries,
    disjoint,
    messages_of,
)
from pubsub.broker.routing.row_routing import RowRouting
from pubsub.broker.routing.sender_routing import route_by_sender
from pubsub.kernel import encode_groups

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.gathered_audience import ByTargets, Groups
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.kernel import Columns, Senders

# Audiences of which the messages are encoded in one tick, messages of all of them, and otherwise
# deliveries of single messages: 8, 0.1 and 1 µs.
_AUDIENCES, _MESSAGES, _DELIVERIES = 1_000, 50_000, 10_000


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
    found = None
    if not router.waiting:
        found = by_targets(topics, batch.columns.largest, senders is not None)
    if found is None or not _are_apart(*found):
        for part in (batch,) if senders is None else batch.by_sender(senders):
            for index, one in part.runs():
                if topics[index].groups or topics[index].behind:
                    router.route(topics[index], one)
        return
    together, others = found
    with_frames = [one for one in others if one[1].encoder.writer is not None]
    rows = RowRouting(
        topics, batch, senders, [one for one in others if one[1].encoder.writer is None]
    )
    apart = disjoint(together, batch.columns, _AUDIENCES)
    if senders is None and (rows.takes_long or _takes_long(together, apart, batch.columns)):
        _route_in_slices(router, topics, batch)
        return
    if apart is None:
        _route_runs(router, topics, batch, senders is not None)
    elif apart:
        stamps = stamps_of([encoder for encoder, _, _ in apart.values()], batch)
        groups = list(zip([frames for _, frames, _ in apart.values()], stamps, strict=True))
        add_groups(router, topics, batch, apart, encode_groups(groups, batch.columns))
    if with_frames and senders is not None:
        route_by_sender(router, topics, batch, senders, with_frames)
    rows.route(router)
    if router.behind:
        for index, count, _ in batch.columns.totals():
            if topics[index].behind:
                topics[index].passed += count


def _takes_long(together: ByTargets, apart: ByTargets | None, columns: Columns) -> bool:
    """Return whether to encode and deliver the messages takes too long for one tick."""
    if apart is None:
        return deliveries(together, columns) > _DELIVERIES
    # Audiences that are apart anyway have hardly more messages together than the batch.
    return apart is not together and sum(messages_of(apart, columns)) > _MESSAGES


def _route_in_slices(router: Router, topics: Sequence[Topic], batch: Batch) -> None:
    """Route ``batch`` as the messages of a ``TopicMix``."""
    # Its audiences may take megabytes, and its topics may not come together again.
    mix = router.mix(topics, lasts=False)
    places = {topic: place for place, topic in enumerate(mix.topics)}
    router.route_mixed(mix, batch.among(mix.names, [places[topic] for topic in topics]))


def _are_apart(together: ByTargets, others: Groups) -> bool:
    """Return whether no outbox is in both: its messages would lose their order."""
    if not others:
        return True
    outboxes = set().union(*[group.targets for _, group in others])
    return all(outboxes.isdisjoint(targets) for targets in together)


def _route_runs(
    router: Router, topics: Sequence[Topic], batch: Batch, of_several_senders: bool
) -> None:
    """Route consecutive messages of each topic where the senders make no difference."""
    offset = batch.offset
    for index, columns in batch.columns.runs():
        topic, count = topics[index], columns.count
        for group in topic.groups.values():
            encoder = group.encoder
            frames = encoder.frames if of_several_senders else encoder.writer
            if frames is not None:
                data, _ = frames.encode(columns, encoder.stamp(batch))
                router.add(group, data, count, offset, topic)
        if batch.has_place and index not in batch.unstored:
            offset += count
