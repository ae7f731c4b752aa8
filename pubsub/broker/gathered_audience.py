"""``GatheredAudience``: outboxes that receive the same messages of one batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pubsub.broker.targets import Targets
from pubsub.broker.topics import Recipient
from pubsub.kernel import FrameEncoder

if TYPE_CHECKING:
    from pubsub.broker.encoders import BatchEncoder
    from pubsub.broker.topics import QueuedDelivery, SubscriberGroup, Topic

# Pieces of the messages that each audience has on average, at least: the work for an audience is
# that for several messages that are routed one by one.
_PIECES = 3
# Outboxes that are taken out of their groups, at most.
_SPLIT = 256
Encoders = tuple["BatchEncoder", dict[int, FrameEncoder]]
"""An encoder of some outboxes, and what writes the frames of each index. The encodings of an outbox
are of one class, so one encoder has the stamp for all of them."""
ByTargets = dict[tuple[Recipient, ...], Encoders]
Groups = list[tuple[int, "SubscriberGroup"]]
"""Groups of subscribers, with the index of their topic."""


class GatheredAudience(Targets[Recipient]):
    """Outboxes that receive the same messages of one batch."""

    __slots__ = ("pending",)

    def __init__(self, targets: Iterable[Recipient]) -> None:
        super().__init__(targets)
        self.pending: list[QueuedDelivery] = []


def by_targets(
    topics: Sequence[Topic], largest: int, by_sender: Groups | None = None
) -> ByTargets | None:
    """Return the encoders of the subscribers of ``topics`` by their outboxes.

    If there are several senders, the groups whose frames depend on the sender are left out, and put
    into ``by_sender``. None if frames depend on more, or do not take messages as large as
    ``largest``.
    """
    together: ByTargets = {}
    last: tuple[Recipient, ...] = ()
    by_index: dict[int, FrameEncoder] = {}
    for index, topic in enumerate(topics):
        for group in topic.groups.values():
            encoder, targets = group.encoder, group.targets
            frames = encoder.writer if by_sender is None else encoder.frames
            if largest > encoder.limit:
                return None
            if frames is None:
                if by_sender is None:
                    return None
                by_sender.append((index, group))
                continue
            if targets != last:
                last = targets
                by_index = together.setdefault(targets, (encoder, {}))[1]
            by_index[index] = frames
    return together


def disjoint(together: ByTargets, pieces: int) -> ByTargets | None:
    """Return ``together`` with each outbox in one item only; None if that is too much work.

    ``pieces`` are those of which the messages would be routed otherwise, as far as they are known.
    """
    number = sum(map(len, together))
    recipients = len(set().union(*together))
    if recipients < number:
        if number > _SPLIT or recipients * _PIECES > number:
            return None
        alone: ByTargets = {}
        for targets, (encoder, frames) in together.items():
            for recipient in targets:
                alone.setdefault((recipient,), (encoder, {}))[1].update(frames)
        together = alone
    topics = sum([len(frames) for _, frames in together.values()])
    return None if len(together) * _PIECES > max(topics, pieces) else together
