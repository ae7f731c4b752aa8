"""The routing of gathered messages to subscribers that get rows (see ``RowEncoding``).

Those are clients of the HTTP API. An encoding writes consecutive messages of one topic and sender
by one call, and there may be as many of these as messages. So each client gets its messages as one
batch, with the offset, the number and the sender of each in rows (see ``batch_rows.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, pairwise, repeat
from operator import sub
from typing import TYPE_CHECKING

from pubsub.broker.publishing.senders import sender_of_each
from pubsub.broker.routing.batch import Batch
from pubsub.broker.routing.batch_rows import BatchRows
from pubsub.broker.routing.encoders import encoder_at_once
from pubsub.broker.routing.gathered_audience import add_groups, deliveries, disjoint, messages_of
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.routing.encoders import BatchEncoder
    from pubsub.broker.routing.gathered_audience import EachTargets, Groups
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import Encoding
    from pubsub.kernel import Senders

# Audiences that look at all messages, of which they get some.
_FEW = 4
# Audiences that are routed in one tick, messages of all of them, and otherwise deliveries of single
# messages: 30, 3 and 3 µs.
_AUDIENCES, _MESSAGES, _DELIVERIES = 250, 2_500, 2_500
# Messages of all audiences for each message of several senders. These are not routed in slices: of
# more, it takes less time to encode each message once.
_TIMES = 4


class RowRouting:
    """Routes ``batch``, whose messages are of ``senders``, to ``groups`` of its ``topics``."""

    def __init__(
        self, topics: Sequence[Topic], batch: Batch, senders: Senders | None, groups: Groups
    ) -> None:
        self._topics = topics
        self._batch = batch
        self._senders = senders
        self._groups = groups
        self._together: EachTargets[Encoding] = {}
        for index, group in groups:
            own = self._together.setdefault(group.targets, (group.encoder, {}, group))[1]
            own[index] = group.encoding
        most = _AUDIENCES
        if senders is None and (batch.headers is not None or batch.unstored):
            # Headers, and messages without offsets, would be looked at for each audience.
            most = _FEW
        self._found = found = disjoint(self._together, batch.columns, most)
        if found is not None and found is not self._together and len(found) > _FEW:
            most = _MESSAGES if senders is None else _TIMES * batch.count
            if sum(messages_of(found, batch.columns)) > most:
                self._found = None

    @property
    def takes_long(self) -> bool:
        """Whether that takes too long for one tick."""
        columns = self._batch.columns
        return self._found is None and deliveries(self._together, columns) > _DELIVERIES

    def route(self, router: Router) -> None:
        """Route the messages to the outboxes of ``router``."""
        if not self._groups:
            return
        topics, batch, found = self._topics, self._batch, self._found
        if found is None:
            route_runs(router, topics, batch, self._senders, self._groups)
        elif self._senders is None and len(found) <= _FEW:
            each = [_encoder(given, len(topics)).encode(batch) for _, given, _ in found.values()]
            add_groups(router, topics, batch, found, each)
        else:
            divided = _Divided(batch, self._senders)
            add_groups(router, topics, batch, found, divided.encoded(found))


def route_runs(
    router: Router,
    topics: Sequence[Topic],
    batch: Batch,
    senders: Senders | None,
    groups: Groups,
) -> None:
    """Route consecutive messages of each topic and sender to ``groups``."""
    by_topic: dict[int, Groups] = {}
    for one in groups:
        by_topic.setdefault(one[0], []).append(one)
    for part in (batch,) if senders is None else batch.by_sender(senders):
        for index, run in part.runs():
            for _, group in by_topic.get(index, ()):
                router.collect(group, run, topics[index])
    router.flush_soon()


def _encoder(given: dict[int, Encoding], topics: int) -> BatchEncoder:
    return encoder_at_once(given, topics, lambda _index, _encoding: None)


class _Divided:
    """The messages of a batch, of which each audience gets some."""

    def __init__(self, batch: Batch, senders: Senders | None) -> None:
        self._batch = batch
        self._payloads = batch.payloads()
        each = repeat(batch.sender, batch.count) if senders is None else sender_of_each(senders)
        self._senders = list(each)
        self._places: dict[int, list[int]] = {}
        for place, index in enumerate(batch.columns.indexes()):
            self._places.setdefault(index, []).append(place)

    def encoded(self, found: EachTargets[Encoding]) -> Iterator[tuple[bytes, int]]:
        """Yield the frames of each audience, and the number of messages that they hold."""
        for encoder, given, group in found.values():
            if group is None or len(given) > 1:
                encoder = _encoder(dict(enumerate(given.values())), len(given))
            part = self._of(list(given))
            yield (b"", 0) if part is None else encoder.encode(part)

    def _of(self, wanted: Sequence[int]) -> Batch | None:
        """Return the messages of the indexes that are ``wanted``, which are numbered from 0."""
        batch = self._batch
        each = [(at, number) for number, index in enumerate(wanted) for at in self._at(index)]
        if not each:
            return None
        if len(wanted) > 1:
            each.sort()
        places, numbers = zip(*each, strict=True)
        senders = tuple(map(self._senders.__getitem__, places))
        # A row has one topic and one sender, and nothing of others is between its messages.
        keys = list(zip(numbers, senders, map(sub, places, count()), strict=False))
        starts = [0, *[n for n, (last, key) in enumerate(pairwise(keys), 1) if key != last]]
        first = [places[n] for n in starts]
        part = Batch(
            tuple([batch.topics[index] for index in wanted]),
            Columns.of(list(map(self._payloads.__getitem__, places)), numbers),
            batch.timestamp,
            batch.sequence,
            batch.sender,
            batch.protocol,
            run=batch.run,
            has_place=batch.has_place,
        )
        part.take(
            BatchRows(
                tuple(map(sub, [*starts[1:], len(places)], starts)),
                tuple([numbers[n] for n in starts]),
                tuple([batch.offset + place for place in first]),
                tuple([batch.sequence + place for place in first]),
                (batch.timestamp,) * len(starts),
                tuple([senders[n] for n in starts]),
            )
        )
        return part

    def _at(self, index: int) -> Sequence[int]:
        return self._places.get(index, ())
