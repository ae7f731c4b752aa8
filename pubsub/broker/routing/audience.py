"""Audiences: the outboxes that receive the same messages, and these messages until the tick ends.

The subscribers of one topic with one encoding are a ``SubscriberGroup``. Where a read brings
messages of several topics, the subscribers that want the same of these topics in the same encodings
are a ``MixedAudience`` (see ``mixed_audience.py``): they receive the messages of these topics in
the order of publishing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pubsub.broker.routing.encoders import too_large
from pubsub.kernel import add_to_each

if TYPE_CHECKING:
    from pubsub.broker.figures.counters import Counters
    from pubsub.broker.figures.traffic import UnsettledDeliveries
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.encoders import BatchEncoder
    from pubsub.broker.topic_space.topics import DeliverySource, QueuedDelivery, Recipient, Topic

# Pending messages are delivered in pieces of about this many bytes: a piece stays in the
# processor's cache, and a subscriber that is full pauses its outbox before the next piece.
WRITE_BYTES = 256 * 1024
# Audiences that are written at once. What more of them get is queued first: they have a few
# messages each, and the sooner these are written, the fewer come together in the next write.
_APART = 64


class Share:
    """The messages of several topics in a delivery.

    ``indexes`` has the index of each message, as ``Columns.words``, and ``wanted`` those that are
    delivered, except for ``lost`` messages of each. They are counted only if that is needed.
    """

    __slots__ = ("_indexes", "_lost", "_topics", "_wanted")

    def __init__(
        self,
        topics: Sequence[Topic],
        indexes: bytes,
        wanted: Collection[int],
        lost: Mapping[int, int] | None = None,
    ) -> None:
        self._topics = topics
        self._indexes = indexes
        self._wanted = wanted
        self._lost = lost or {}

    @property
    def topics(self) -> Iterable[Topic]:
        """See ``DeliverySource``."""
        return [topic for topic, _ in self.counts(0)]

    def counts(self, count: int) -> Iterable[tuple[Topic, int]]:
        """See ``DeliverySource``."""
        numbers = Counter(memoryview(self._indexes).cast("I"))
        numbers.subtract(self._lost)
        return [
            (self._topics[index], number)
            for index, number in numbers.items()
            if index in self._wanted and number
        ]

    def without(self, lost: Mapping[int, int]) -> Share:
        """Return the share without ``lost`` messages of each index."""
        return Share(self._topics, self._indexes, self._wanted, lost)


class DeliveryShares:
    """The shares of deliveries that were joined."""

    __slots__ = ("_sources",)

    def __init__(self, sources: Sequence[DeliverySource]) -> None:
        self._sources = sources

    @property
    def topics(self) -> Iterable[Topic]:
        """See ``DeliverySource``."""
        return {topic for source in self._sources for topic in source.topics}

    def counts(self, count: int) -> Iterable[tuple[Topic, int]]:
        """See ``DeliverySource``."""
        totals: Counter[Topic] = Counter()
        for source in self._sources:
            for topic, number in source.counts(0):
                totals[topic] += number
        return totals.items()


class Receivers(Protocol):
    """Outboxes that receive the same messages; ``pending`` are those of this tick.

    ``messages``, ``nbytes`` and ``known`` are as in ``Targets``.
    """

    known: tuple[Recipient, ...]
    pending: list[QueuedDelivery]
    messages: int
    nbytes: int

    def settle(self) -> None:
        """See ``Targets``."""

    @property
    def targets(self) -> tuple[Recipient, ...]:
        """The outboxes. The tuple does not change while it is iterated over."""


class Audience(Receivers, Protocol):
    """Receivers of more than one batch; ``encoder`` writes their messages."""

    encoder: BatchEncoder


def apart(audiences: Sequence[Receivers], most: int) -> list[tuple[Recipient, ...]]:
    """Return the outboxes of each of ``audiences`` if they can be written to at once.

    That is so if the audiences are few, if they have at most ``most`` outboxes together, and if no
    outbox is in two of them. Otherwise the list is empty.
    """
    if len(audiences) > _APART:
        return []
    found = [audience.known or audience.targets for audience in audiences]
    number = sum(map(len, found))
    if not 0 < number <= most:
        return []
    return found if len(found) == 1 or len(set().union(*found)) == number else []


def write_pending(
    audiences: Sequence[Receivers],
    outboxes: Sequence[tuple[Recipient, ...]],
    unsettled: UnsettledDeliveries,
) -> None:
    """Write the pending messages to the ``outboxes`` of each audience: nothing else waits there."""
    each = [audience.pending for audience in audiences]
    for audience in audiences:
        audience.pending = []
    for audience, targets, pending in zip(audiences, outboxes, each, strict=True):
        if not targets:
            continue
        is_only = len(pending) == 1
        for _order, data, count, offset, source in pending if is_only else joined(pending):
            if is_only and len(each) == 1:
                if not audience.messages:
                    unsettled.add(audience)
                audience.messages += count
                audience.nbytes += len(data)
            else:
                # An outbox that a piece overfills leaves the audience before the next. Several
                # audiences may be those of one batch, which are not kept to be settled.
                add_to_each(targets, count, len(data), targets[0].traffic.delivered)
            for recipient in targets:
                recipient.deliver_now(data, count, source, offset)


def deliver_pending(audiences: Sequence[Receivers]) -> int:
    """Deliver the pending messages to the outboxes, in the order of publishing.

    Returns how many were delivered to all outboxes together.
    """
    found = [(audience.targets, audience.pending) for audience in audiences]
    for audience in audiences:
        audience.pending = []
    delivered = 0
    together: set[Recipient] = set().union(*[targets for targets, _ in found])
    if len(together) == sum([len(targets) for targets, _ in found]):
        for targets, pending in found:
            for delivery in joined(pending):
                delivered += _deliver(targets, delivery)
    else:
        merged = [(targets, delivery) for targets, pending in found for delivery in pending]
        for targets, delivery in sorted(merged, key=lambda one: one[1][0]):
            delivered += _deliver(targets, delivery)
    return delivered


def _deliver(targets: Sequence[Recipient], delivery: QueuedDelivery) -> int:
    """Return how many messages were delivered to all ``targets`` together."""
    _order, data, count, offset, source = delivery
    for recipient in targets:
        recipient.deliver(data, count, source, offset)
    return count * len(targets)


def without_too_large(
    audience: Audience, batch: Batch, source: DeliverySource, counters: Counters
) -> DeliverySource:
    """Count the messages that no frame of the audience can carry; return the others' source."""
    lost = too_large(audience.encoder, batch)
    for index, count in lost.items():
        topic = batch.topics[index]
        for outbox in audience.targets:
            counters.drop(
                outbox.label, topic, "too-large", count, outbox.connection, outbox.traffic
            )
    return source.without(lost) if isinstance(source, Share) else source


def joined(pending: list[QueuedDelivery]) -> Iterator[QueuedDelivery]:
    """Join neighbours up to about WRITE_BYTES each."""
    if len(pending) == 1:
        yield pending[0]
        return
    if pending and sum([len(delivery[1]) for delivery in pending]) < WRITE_BYTES:
        yield _join(pending)
        return
    start = size = 0
    for index, delivery in enumerate(pending):
        size += len(delivery[1])
        if size >= WRITE_BYTES or index == len(pending) - 1:
            yield _join(pending[start : index + 1])
            start, size = index + 1, 0


def _join(piece: list[QueuedDelivery]) -> QueuedDelivery:
    if len(piece) == 1:
        return piece[0]
    orders, data, counts, offsets, sources = zip(*piece, strict=True)
    source = sources[0] if len(set(sources)) == 1 else DeliveryShares(sources)
    return orders[0], b"".join(data), sum(counts), offsets[0], source
