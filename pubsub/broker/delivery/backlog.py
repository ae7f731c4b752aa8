"""The state of an outbox whose subscriber is slow, or whose drain a caller waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.broker.delivery.last_writes import LastWrites

if TYPE_CHECKING:
    from pubsub.broker.delivery.cursor import Cursor
    from pubsub.broker.figures.traffic import Traffic
    from pubsub.broker.topic_space.topics import DeliverySource, Topic

QueueEntry = tuple[bytes, int, "DeliverySource", int]
"""Encoded messages, how many they are, their topics, and the offset of the first."""


class Backlog:
    """The state that an outbox needs only while its subscriber is slow or a caller waits for it."""

    __slots__ = (
        "blocking", "charged", "cursor", "drained", "evicted", "held_back", "inflight",
        "last_writes", "since",
    )  # fmt: skip

    def __init__(self) -> None:
        # Bytes that the transport holds, and bytes charged to the memory budget.
        self.inflight = self.charged = 0
        # The first of the bytes that wait, which came while only the broker held them.
        self.held_back = 0
        self.since: float | None = None
        self.blocking: set[Topic] = set()
        # Called once when everything has been sent, in this order.
        self.drained: list[Callable[[], None]] = []
        self.cursor: Cursor | None = None
        self.evicted = False
        self.last_writes = LastWrites()

    def count_taken(self, nbytes: int) -> None:
        """The transport has taken, and sent, the next ``nbytes`` bytes."""
        self.held_back = max(0, self.held_back - nbytes)


@dataclass(frozen=True, slots=True)
class PendingMessages:
    """Messages that a client would get if it resumed its session, by topic.

    ``label`` names it, and ``traffic`` is that of its protocol.
    """

    label: str
    counts: Mapping[Topic, int]
    traffic: Traffic | None = None


def first_offsets(queue: Iterable[QueueEntry]) -> dict[Topic, int]:
    """Return the offset of the first message of each topic that is queued."""
    first: dict[Topic, int] = {}
    for _data, _count, source, offset in queue:
        for topic in source.topics:
            if offset < first.get(topic, offset + 1):
                first[topic] = offset
    return first


def message_counts(queue: Iterable[QueueEntry]) -> dict[Topic, int]:
    """Return how many messages of each topic are queued."""
    counts: dict[Topic, int] = {}
    for _data, count, source, _offset in queue:
        for topic, number in source.counts(count):
            counts[topic] = counts.get(topic, 0) + number
    return counts
