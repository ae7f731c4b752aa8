"""``GatheredAudience``: outboxes that receive the same messages of one batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import mul
from typing import TYPE_CHECKING, TypeVar

from pubsub.broker.routing.audience import Share
from pubsub.broker.routing.targets import Targets
from pubsub.broker.topic_space.topics import Recipient
from pubsub.kernel import FrameEncoder

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.encoders import BatchEncoder
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topics import (
        DeliverySource,
        QueuedDelivery,
        SubscriberGroup,
        Topic,
    )
    from pubsub.kernel import Columns

# Bytes that are copied for audiences of outboxes that are taken out of their groups, at most.
_COPIED = 8 * 1024 * 1024
_Writer = TypeVar("_Writer")
Wanted = tuple["BatchEncoder", dict[int, _Writer], "SubscriberGroup | None"]
"""For some outboxes, an encoder of theirs, and what writes the messages of each index. The
encodings of an outbox are of one class, so one encoder has the stamp for all of them. The group, if
there is one, has the same outboxes, and receives the messages for them."""
EachTargets = dict[tuple[Recipient, ...], Wanted[_Writer]]
ByTargets = EachTargets[FrameEncoder]
Groups = list[tuple[int, "SubscriberGroup"]]
"""Groups of subscribers, with the index of their topic."""


class GatheredAudience(Targets[Recipient]):
    """Outboxes that receive the same messages of one batch."""

    __slots__ = ("pending",)

    def __init__(self, targets: tuple[Recipient, ...]) -> None:
        super().__init__(targets)
        self.known = targets
        self.pending: list[QueuedDelivery] = []


def by_targets(
    topics: Sequence[Topic], largest: int, of_several_senders: bool
) -> tuple[ByTargets, Groups] | None:
    """Return the encoders of the subscribers of ``topics`` by their outboxes, and other groups.

    Those are the groups whose frames the kernel does not write, or not if they are of several
    senders. None if the frames of a group do not take messages as large as ``largest``.
    """
    together: ByTargets = {}
    others: Groups = []
    last: tuple[Recipient, ...] = ()
    by_index: dict[int, FrameEncoder] = {}
    for index, topic in enumerate(topics):
        for group in topic.groups.values():
            encoder = group.encoder
            frames = encoder.frames if of_several_senders else encoder.writer
            if largest > encoder.limit:
                return None
            if frames is None:
                others.append((index, group))
                continue
            targets = group.known or group.targets
            if targets == last:
                by_index[index] = frames
                continue
            last = targets
            found = together.get(targets)
            if found is None:
                by_index = {index: frames}
                together[targets] = encoder, by_index, group
            else:
                by_index = found[1]
                by_index[index] = frames
    return together, others


def disjoint(
    together: EachTargets[_Writer], columns: Columns, most: int
) -> EachTargets[_Writer] | None:
    """Return ``together`` with each outbox in one item only; ``columns`` are the messages.

    None if these are more than ``most`` items, or if too many bytes would be copied for them.
    """
    if len(together) <= 1 or len(set().union(*together)) == sum(map(len, together)):
        return together if len(together) <= most else None
    wanted: dict[Recipient, list[int]] = {}
    for place, targets in enumerate(together):
        for recipient in targets:
            wanted.setdefault(recipient, []).append(place)
    alike: dict[tuple[int, ...], list[Recipient]] = {}
    for recipient, places in wanted.items():
        alike.setdefault(tuple(places), []).append(recipient)
    sizes = {index: nbytes for index, _, nbytes in columns.totals()}
    items = list(together.values())
    copied = [sum([sizes.get(index, 0) for index in frames]) for _, frames, _ in items]
    if len(alike) > most or sum([copied[n] for some in alike for n in some]) > _COPIED:
        return None
    return {
        tuple(recipients): _joined([items[place] for place in places])
        for places, recipients in alike.items()
    }


def messages_of(together: EachTargets[_Writer], columns: Columns) -> list[int]:
    """Return how many messages each item of ``together`` gets, at most."""
    counts = {index: count for index, count, _ in columns.totals()}
    return [sum([counts.get(index, 0) for index in frames]) for _, frames, _ in together.values()]


def deliveries(together: EachTargets[_Writer], columns: Columns) -> int:
    """Return how many messages the outboxes of ``together`` get, at most."""
    return sum(map(mul, map(len, together), messages_of(together, columns)))


def _joined(items: Sequence[Wanted[_Writer]]) -> Wanted[_Writer]:
    frames: dict[int, _Writer] = {}
    for _, some, _ in items:
        frames.update(some)
    return items[0][0], frames, None


def add_groups(
    router: Router,
    topics: Sequence[Topic],
    batch: Batch,
    together: EachTargets[_Writer],
    each: Iterable[tuple[bytes, int]],
    topic_of: Sequence[int] | None = None,
) -> None:
    """Have the outboxes of ``together`` get the frames and numbers of messages of ``each``.

    ``topics`` are those of ``batch``; ``topic_of`` has the place there for each index of
    ``together``, None if they are the same.
    """
    indexes = batch.columns.words(of_indexes=True)
    source: DeliverySource
    for (targets, (_, frames, group)), (data, count) in zip(together.items(), each, strict=True):
        if not count:
            continue
        places = frames if topic_of is None else {topic_of[index] for index in frames}
        if len(places) == 1:
            (place,) = places
            source = topics[place]
        else:
            source = Share(topics, indexes, places)
        receivers = GatheredAudience(targets) if group is None else group
        router.add(receivers, data, count, batch.offset, source)
