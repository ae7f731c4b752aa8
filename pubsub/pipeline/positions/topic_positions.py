"""Positions of topics in a query, and the offsets between two positions of it.

The topics of a partition are read together, up to one offset. A topic that is added under the same
checkpoint begins elsewhere: it is kept apart, with those it shares its position with, until it has
caught up with the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pubsub.pipeline.histories.history import History
from pubsub.pipeline.options.topic_selection import TopicSelection
from pubsub.pipeline.positions.offsets import Behind, PartitionPosition
from pubsub.pipeline.positions.topic_starts import Covers, Group, TopicStarts


@dataclass(frozen=True, slots=True)
class Stretch:
    """The messages of the topics ``reads`` from ``start`` to before ``stop`` of a partition.

    Of a history that several brokers share, ``since`` and ``until`` are the shared positions, and
    the offsets, at the broker where the batch is planned, are only near them.
    """

    partition: int
    start: int
    stop: int
    epoch: str
    reads: TopicSelection
    since: str | None = None
    until: str | None = None


def first_position(
    history: History, starts: TopicStarts, reads: TopicSelection
) -> PartitionPosition:
    """Return the position at which a query begins."""
    groups = starts.groups(reads) or [(starts.of(), reads.covers)]
    return _joined(history, starts.bounds.epoch, reads, groups)


def with_subscription(
    history: History, position: PartitionPosition, reads: TopicSelection, starts: TopicStarts
) -> PartitionPosition:
    """Return the position with the topics of ``reads``; those that are new begin at ``starts``."""
    before, apart = position.reads, position.apart
    assert before is not None

    def stays(name: str) -> bool:
        return before.covers(name) and reads.covers(name) and name not in apart

    def is_behind(names: frozenset[str], name: str) -> bool:
        return name in names and reads.covers(name)

    groups: list[Group] = [(position.next, stays)]
    groups += [(each.next, partial(is_behind, each.topics)) for each in position.behind]
    groups += [(at, partial(_is_new, covers, apart)) for at, covers in starts.groups(reads, before)]
    if max(at for at, _ in groups) == position.next:
        return _joined(history, position.epoch, reads, groups)
    # The position moves on in the epoch of now.
    history.check(position.next, position.epoch)
    return _joined(history, starts.bounds.epoch, reads, groups)


def _is_new(covers: Covers, apart: frozenset[str], name: str) -> bool:
    return name not in apart and covers(name)


def _joined(
    history: History, epoch: str, reads: TopicSelection, groups: Sequence[Group]
) -> PartitionPosition:
    """Return a position at the last of the offsets, with the topics before it kept apart."""
    top = max(at for at, _ in groups)
    behind: dict[int, frozenset[str]] = {}
    for at, covers in groups:
        if at < top:
            found = {topic.name for topic in history.topics(at, top) if covers(topic.name)}
            if found:
                behind[at] = behind.get(at, frozenset()) | found
    apart = tuple(Behind(at, names) for at, names in sorted(behind.items()))
    return PartitionPosition(top, epoch, reads, apart)


def stretches(
    number: int, start: PartitionPosition, end: PartitionPosition, reads: TopicSelection
) -> list[Stretch]:
    """Return the ranges of a query from ``start`` to ``end``.

    Only positions decide, so that a batch which is run again after the options were changed reads
    the same. ``reads`` is used for positions that do not say which topics they are of. A batch in
    which the topics change reads nothing: it stores where the new ones begin.
    """
    if start.reads is not None and end.reads is not None and start.reads != end.reads:
        return []
    reads = end.reads or start.reads or reads
    ends = {name: (each.next, each.shared) for each in end.behind for name in each.topics}
    top = end.next, end.shared
    main = reads.without(start.apart | end.apart)
    found = [Stretch(number, start.next, end.next, end.epoch, main, start.shared, end.shared)]
    for each in start.behind:
        stops: dict[tuple[int, str | None], set[str]] = defaultdict(set)
        for name in filter(reads.covers, each.topics):
            stops[ends.get(name, top)].add(name)
        for (stop, until), names in sorted(stops.items(), key=_stop_of):
            some = TopicSelection(frozenset(names), None)
            found.append(Stretch(number, each.next, stop, end.epoch, some, each.shared, until))
    return [one for one in found if one.start < one.stop and not one.reads.is_empty]


def _stop_of(item: tuple[tuple[int, str | None], set[str]]) -> int:
    (stop, _), _ = item
    return stop


def batch_end(start: PartitionPosition, end: PartitionPosition) -> PartitionPosition:
    """Return ``end`` as the end of a batch from ``start``."""
    since = replace(start, initial=False, since=None) if start.initial else None
    return replace(end, initial=False, since=since)


def advanced(
    position: PartitionPosition, epoch: str, stops: dict[int, int], stop: int
) -> PartitionPosition:
    """Return the position at ``stop``; ``stops`` are those of the topics behind, by their start."""
    left: dict[int, frozenset[str]] = {}
    for each in position.behind:
        at = stops.get(each.next, stop)
        if at < stop:
            left[at] = left.get(at, frozenset()) | each.topics
    behind = tuple(Behind(at, names) for at, names in sorted(left.items()))
    if stop == position.next and behind == position.behind:
        # With the old epoch, as Spark compares the offsets to find out whether they have moved.
        return position
    return PartitionPosition(stop, epoch, position.reads, behind)
