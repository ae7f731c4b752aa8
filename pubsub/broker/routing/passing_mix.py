"""``PassingMix``: topics of which messages arrive in one read, and probably in no other.

A publisher for many topics, such as a gateway of devices, sends each read to another combination of
them. The audiences of a ``TopicMix`` would be made for one batch, which takes far more than to
route it. So a combination that has not come before is routed as gathered messages are. Topics that
have subscribers of their own, such as one for each user, are routed so in any case: each audience
of a ``TopicMix`` looks at all messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.routing.gathered_routing import route_gathered
from pubsub.broker.routing.mixed_topics import MixedTopics

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.router import Router
    from pubsub.broker.routing.topic_mix import TopicMix
    from pubsub.broker.topic_space.topics import Recipient, Topic
    from pubsub.kernel import Senders

# Topics, and subscriptions to them, at most: all of them are looked at in one tick.
_TOPICS, _SUBSCRIPTIONS = 2_000, 10_000
# Topics are scattered if they and _SOME more have more than an audience for each _SHARED of them,
# and if each has at most _SUBSCRIBED subscriptions on average.
_SOME, _SHARED, _SUBSCRIBED = 64, 4, 4
# Pieces of a tick from which on, and up to which, it waits for more, and the bytes of each that are
# enough. To route a read for more outboxes takes so long that they are not combined.
_PIECES, _MOST_PIECES, _PIECE_BYTES = 64, 500, 4096


class PassingMix(MixedTopics):
    """Distinct topics and their names, in the order of a read's indexes."""

    __slots__ = ()
    lasts = False

    def __init__(self, topics: Sequence[Topic]) -> None:
        super().__init__(tuple(topics), tuple([topic.name for topic in topics]))


def publish_passing(
    router: Router,
    topics: Sequence[Topic],
    batch: Batch,
    senders: Senders | None,
    look_again: Callable[[Callable[[], bool]], object],
) -> None:
    """Count and route the messages of ``batch``, which are of ``senders``; see ``route_gathered``.

    ``topics`` has the topic of each index. ``look_again`` is as in ``Gathering``.
    """
    timestamp = batch.timestamp
    for index, count, nbytes in batch.columns.totals():
        topics[index].count(count, nbytes, timestamp)
    route_gathered(router, topics, batch, senders)
    if _PIECES <= len(router.pending) <= _MOST_PIECES:
        # Asked at the end of the tick, not for each of its reads: it looks at all pieces.
        look_again(partial(_waits_for_more, router))


def _waits_for_more(router: Router) -> bool:
    """Return whether further messages of this tick should be sent together with those routed.

    That is so if each of many outboxes has a small piece, whose write costs more than all else.
    """
    pending = router.pending
    if not _PIECES <= len(pending) <= _MOST_PIECES or router.gate.shut or router.waiting:
        return False
    nbytes = sum([len(delivery[1]) for receivers in pending for delivery in receivers.pending])
    return nbytes < _PIECE_BYTES * len(pending)


def fits_in_tick(router: Router, topics: Sequence[Topic]) -> bool:
    """Return whether messages of ``topics`` may be routed in this tick, rather than in slices."""
    if router.waiting or len(topics) > _TOPICS:
        return False
    # Those of the topics are counted only if all are more.
    return has_few_subscriptions(router) or sum(map(len, _subscribers_of(topics))) <= _SUBSCRIPTIONS


def has_few_subscriptions(router: Router) -> bool:
    """Return whether messages of any topics have few enough subscribers for one tick."""
    return router.subscriptions <= _SUBSCRIPTIONS


def _subscribers_of(topics: Sequence[Topic]) -> list[tuple[Recipient, ...]]:
    return [group.targets for topic in topics for group in topic.groups.values()]


def are_scattered(topics: Sequence[Topic]) -> bool:
    """Return whether most of ``topics`` have other subscribers than the others, and few."""
    fewest = _fewest(topics)
    if sum([len(topic.groups) for topic in topics]) <= fewest:
        return False
    found = _subscribers_of(topics)
    # In this order, as the hash of a group takes time for each subscriber.
    return sum(map(len, found)) <= _SUBSCRIBED * len(topics) and len(set(found)) > fewest


def _fewest(topics: Sequence[Topic]) -> int:
    return (len(topics) + _SOME) // _SHARED


def lasting_mix(router: Router, mix: TopicMix) -> TopicMix | PassingMix:
    """Return ``mix``, or a mix without audiences if its topics are scattered."""
    audiences = mix.current
    if audiences is not None and len(audiences) <= _fewest(mix.topics):
        return mix
    if are_scattered(mix.topics) and fits_in_tick(router, mix.topics):
        return PassingMix(mix.topics)
    return mix


def passing_mix(router: Router, topics: Sequence[Topic]) -> PassingMix | None:
    """Return the mix of ``topics``; None if it has to be a ``TopicMix``.

    That is so if a topic is there twice, or if the work has to be done in slices.
    """
    if len(set(topics)) < len(topics) or not fits_in_tick(router, topics):
        return None
    return PassingMix(topics)
