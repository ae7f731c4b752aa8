"""The interface of a subscriber that is behind, as its cursor uses it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Protocol

from pubsub.broker.topic_space.topics import Recipient

if TYPE_CHECKING:
    from pubsub.broker.delivery.slow_policy import SlowPolicy
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import DeliverySource, Topic


class BehindOutbox(Recipient, Protocol):
    """The outbox of a subscriber that is behind."""

    policy: SlowPolicy
    chooses_start: bool
    """Whether the client names the offset at which it begins, rather than to continue."""

    @property
    def drained(self) -> bool:
        """True if nothing is queued and the transport is ready; then ``wake`` is called."""

    def make_changes(self) -> None:
        """Make the changes that wait: messages read from the history may be newer than they are.

        Messages that were gathered are published before: the history does not end before they do.
        """

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``."""

    def enqueue(self, data: bytes, count: int, source: DeliverySource, offset: int) -> None:
        """Queue ``count`` encoded messages without limit; ``offset`` is that of the first."""

    def missed(self, start: int, stop: int, reason: str) -> None:
        """The messages from offset ``start`` to before ``stop`` are skipped, for ``reason``."""

    def evict(self, reason: str) -> None:
        """Close the connection, because of ``reason``."""

    def caught_up(self) -> None:
        """Everything in the history has been queued: the subscriber is live again."""


def receives_all(outbox: BehindOutbox, topics: Sequence[Topic], batch: Batch) -> bool:
    """Return whether all messages of ``batch``, which are of ``topics``, are for the client."""
    if batch.rows is None:
        return all(outbox.receives(topic, batch) for topic in topics)
    one = copy(batch)
    for index, one.sender in set(zip(batch.rows.indexes, batch.rows.senders, strict=True)):
        if not outbox.receives(topics[index], one):
            return False
    return True
