"""``PassingMix``: topics of which messages arrive in one read, and probably in no other.

A publisher for many topics, such as a gateway of devices, sends each read to another combination of
them. The audiences of a ``TopicMix`` would be made for one batch, which takes far more than to
route it. So a combination that has not come before is routed as gathered messages are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub.broker.gathered_routing import route_gathered
from pubsub.broker.mixed_topics import MixedTopics

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.router import Router
    from pubsub.broker.topics import Topic
    from pubsub.kernel import Senders

# Topics, and subscriptions to them, at most: all of them are looked at in one tick.
_TOPICS, _SUBSCRIPTIONS = 2_000, 10_000


class PassingMix(MixedTopics):
    """Distinct topics and their names, in the order of a read's indexes."""

    __slots__ = ()
    lasts = False

    def __init__(self, topics: Sequence[Topic]) -> None:
        super().__init__(tuple(topics), tuple([topic.name for topic in topics]))


def publish_passing(
    router: Router, topics: Sequence[Topic], batch: Batch, senders: Senders | None = None
) -> None:
    """Count and route the messages of ``batch``, which are of ``senders``; see ``route_gathered``.

    ``topics`` has the topic of each index.
    """
    timestamp = batch.timestamp
    for index, count, nbytes in batch.columns.totals():
        topics[index].count(count, nbytes, timestamp)
    route_gathered(router, topics, batch, senders)


def fits_in_tick(router: Router, topics: Sequence[Topic]) -> bool:
    """Return whether messages of ``topics`` may be routed in this tick, rather than in slices."""
    if router.waiting or len(topics) > _TOPICS:
        return False
    return sum([len(one) for topic in topics for one in topic.groups.values()]) <= _SUBSCRIPTIONS


def passing_mix(router: Router, topics: Sequence[Topic]) -> PassingMix | None:
    """Return the mix of ``topics``; None if it has to be a ``TopicMix``.

    That is so if a topic is there twice, or if the work has to be done in slices.
    """
    if len(set(topics)) < len(topics) or not fits_in_tick(router, topics):
        return None
    return PassingMix(topics)
