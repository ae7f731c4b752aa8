"""``MixedAudience``: subscribers of the same ones of several topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pubsub.broker.routing.targets import Targets

if TYPE_CHECKING:
    from pubsub.broker.routing.encoders import BatchEncoder
    from pubsub.broker.topic_space.topics import QueuedDelivery, Recipient
    from pubsub.interfaces import Encoding

# Estimated bytes of an audience, of each topic of the mix in its encoder, and of each of its own
# topics, for the memory budget.
_BYTES, _PLACE_BYTES, _TOPIC_BYTES = 1000, 25, 160
RECIPIENT_BYTES = 250
"""Estimated bytes of a subscriber in an audience."""


class MixedAudience(Targets["Recipient"]):
    """Subscribers of the same ones of several topics; ``wanted`` has the topics' indexes.

    ``encodings`` has the encoding of each of these, in ascending order; ``encoder`` is for batches
    of all topics. ``flags`` has a byte for each topic, 1 if it is wanted.
    """

    __slots__ = ("encoder", "encodings", "flags", "pending", "wanted")

    def __init__(
        self,
        encodings: Mapping[int, Encoding],
        topics: int,
        encoder: BatchEncoder,
        targets: Iterable[Recipient] = (),
    ) -> None:
        super().__init__(targets)
        self.encodings = encodings
        self.encoder = encoder
        self.wanted = frozenset(encodings)
        flags = bytearray(topics)
        for index in encodings:
            flags[index] = 1
        self.flags = bytes(flags)
        self.pending: list[QueuedDelivery] = []

    def weight(self, topics: int) -> int:
        """Return the estimated bytes in a mix of as many ``topics``, without the subscribers."""
        return _BYTES + _PLACE_BYTES * topics + _TOPIC_BYTES * len(self.encodings)


def key_of(encodings: Mapping[int, Encoding]) -> tuple[int, ...]:
    """Return a key that is equal for the same encodings of the same topics.

    All subscriptions of a group have the same object, and comparing encodings by value would take
    longer than all else. An audience keeps its encodings, so no other object has their ids.
    """
    return (*encodings, *map(id, encodings.values()))
