"""The routing of messages of several senders to subscribers whose frames depend on the sender.

Consecutive messages of one sender would be a batch each. Instead, a topic and a sender together
have an index, and frames of their own: so the messages are encoded at once.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from pubsub.broker.publishing.senders import sender_of_each
from pubsub.broker.routing.batch import indexed_by
from pubsub.broker.routing.gathered_audience import add_groups, disjoint
from pubsub.broker.routing.row_routing import route_runs
from pubsub.kernel import Columns, encode_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.gathered_audience import ByTargets, Groups
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.kernel import Senders

# Audiences of which the messages are encoded in one tick.
_AUDIENCES = 1_000
_Pairs = dict[tuple[int, bytes], int]
"""The indexes of topics and senders together, by the index of the topic and the sender."""


def route_by_sender(
    router: Router, topics: Sequence[Topic], batch: Batch, senders: Senders, groups: Groups
) -> None:
    """Route ``batch``, whose messages are of ``senders``, to ``groups`` of its topics."""
    pairs, columns = _paired(batch.columns, senders)
    found = disjoint(_by_targets(batch, groups, pairs), columns, _AUDIENCES)
    if found is None:
        route_runs(router, topics, batch, senders, groups)
        return
    each = encode_groups([(frames, b"") for _, frames, _ in found.values()], columns)
    add_groups(router, topics, batch, found, each, [index for index, _ in pairs])


def _paired(columns: Columns, senders: Senders) -> tuple[_Pairs, Columns]:
    """Return the indexes of topics and senders, and the messages with these indexes."""
    found = zip(columns.indexes(), sender_of_each(senders), strict=True)
    columns, pairs = indexed_by(columns, found)
    return {pair: number for number, pair in enumerate(pairs)}, columns


def _by_targets(batch: Batch, groups: Groups, pairs: _Pairs) -> ByTargets:
    """Return the encoders of the subscribers of ``groups`` by their outboxes."""
    by_topic: dict[int, list[tuple[bytes, int]]] = {}
    for (index, sender), number in pairs.items():
        by_topic.setdefault(index, []).append((sender, number))
    together: ByTargets = {}
    one = copy(batch)
    for index, group in groups:
        encoder = group.encoder
        frames = together.setdefault(group.targets, (encoder, {}, group))[1]
        for sender, number in by_topic.get(index, ()):
            one.sender = sender
            frames[number] = encoder.frames_with(encoder.stamp(one))
    return together
