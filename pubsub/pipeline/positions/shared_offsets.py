"""Positions of queries at brokers that share a history: offsets, and the positions they stand for.

Offsets are those of the broker that plans; the shared positions are the same at all brokers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pubsub.pipeline.histories.broker_list import BrokerList
from pubsub.pipeline.histories.history import Unreachable, WrongHistory
from pubsub.pipeline.positions.offsets import Behind, PartitionPosition

if TYPE_CHECKING:
    from pubsub.pipeline.histories.http_history import HttpHistory


def converted(brokers: BrokerList, position: PartitionPosition) -> PartitionPosition:
    """Return a position that a query had when it read one of the brokers alone.

    Raises WrongHistory if it is of none of them, and Unreachable while that is not known.
    """
    away: Unreachable | None = None
    for broker in brokers.brokers:
        try:
            broker.check(position.next, position.epoch)
        except Unreachable as error:
            away = error
        except WrongHistory as error:
            failure = error
        else:
            return _converted(brokers, broker, position)
    raise away or failure


def _converted(
    brokers: BrokerList, broker: HttpHistory, position: PartitionPosition
) -> PartitionPosition:
    def shared(offset: int) -> str:
        found = broker.shared_bounds(brokers.shared, at=offset)
        assert found.position is not None
        return found.position

    behind = tuple(replace(each, shared=shared(each.next)) for each in position.behind)
    since = position.since and converted(brokers, position.since)
    return replace(position, shared=shared(position.next), behind=behind, since=since)


def located(brokers: BrokerList, position: PartitionPosition, is_end: bool) -> PartitionPosition:
    """Return a position with the offsets that it has at the broker that plans.

    ``is_end`` is as in ``BrokerList.place``.
    """
    assert position.shared is not None
    following, epoch = brokers.place(position.shared, is_end)
    behind = tuple(
        Behind(brokers.place(each.shared or "", is_end)[0], each.topics, each.shared)
        for each in position.behind
    )
    since = position.since and located(brokers, position.since, False)
    return replace(position, next=following, epoch=epoch, behind=behind, since=since)


def shared_position(
    brokers: BrokerList, before: PartitionPosition | None, end: PartitionPosition
) -> PartitionPosition:
    """Return ``end`` with its shared positions; the query has read up to ``before``."""
    start = None if before is None else (before.next, before.shared)
    sources = {
        name: (each.next, each.shared)
        for each in (() if before is None else before.behind)
        for name in each.topics
    }
    behind = []
    for each in end.behind:
        parts: dict[tuple[int, str | None] | None, set[str]] = {}
        for name in each.topics:
            was_read = before is not None and before.reads and before.reads.covers(name)
            source = sources.get(name) or (start if was_read else None)
            parts.setdefault(source, set()).add(name)
        behind += [
            Behind(each.next, frozenset(names), _position(brokers, source, each.next))
            for source, names in parts.items()
        ]
    return replace(end, shared=_position(brokers, start, end.next), behind=tuple(behind))


def _position(brokers: BrokerList, source: tuple[int, str | None] | None, offset: int) -> str:
    """Return the position at ``offset``, with all that is before that of ``source``."""
    if source is None:
        return brokers.position(offset, None)
    if source[0] == offset and source[1] is not None:
        return source[1]
    return brokers.position(offset, source[1])
