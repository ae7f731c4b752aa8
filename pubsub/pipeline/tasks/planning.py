"""Divides the offsets that a query reads into tasks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeAlias

from pyspark.sql.datasource import InputPartition

from pubsub.pipeline.histories.history import History
from pubsub.pipeline.histories.topic_amounts import amount_of
from pubsub.pipeline.options.topic_selection import TopicSelection

_Cell: TypeAlias = tuple[int, int, int]
"""A range of offsets with its bytes: the first, the one after the last, and the bytes."""
# Cells in which bytes are measured for each range, and at most.
_CELLS = 4
_MOST_CELLS = 128
# Times that a cell with more than its share is divided: one of a million offsets, to single ones.
_DIVISIONS = 10
# Estimated bytes of a message beside its payload.
_ROW_BYTES = 64


@dataclass(frozen=True)
class Task(InputPartition):
    """The offsets from ``start`` to before ``stop`` of a partition in ``epoch``."""

    partition: int
    start: int
    stop: int
    epoch: str
    topics: frozenset[str] | None


def plan_tasks(
    history: History,
    whole: Task,
    subscription: TopicSelection,
    rows_per_task: int,
    parts: int = 1,
) -> list[Task]:
    """Divide ``whole`` into ranges of about ``rows_per_task`` rows, at least ``parts``.

    Ranges have about equally many bytes if there have to be more of them, or if the offsets have
    gaps; otherwise as many offsets. Returns no tasks if there is nothing to read.
    """
    width = whole.stop - whole.start
    if width <= 0 or (whole.topics is not None and not whole.topics):
        return []
    rows = width
    if width > rows_per_task or parts > 1:
        rows = amount_of(subscription, history, whole.start, whole.stop).rows
    count = max(1, -(-rows // rows_per_task), min(parts, rows))
    if count > 1 and (parts > 1 or rows < width // 2):
        cuts = cuts_by_bytes(history, subscription, whole.start, whole.stop, count)
    else:
        cuts = [whole.start + width * number // count for number in range(count + 1)]
    if count > 1:
        good = history.cuts(whole.start, whole.stop)
        near = [_nearest(good, cut, width // count // 4) for cut in cuts[1:-1]]
        cuts = _distinct([whole.start, *near, whole.stop])
    return [
        Task(whole.partition, start, stop, whole.epoch, whole.topics)
        for start, stop in pairwise(cuts)
        if start < stop
    ]


def cuts_by_bytes(
    history: History, subscription: TopicSelection, start: int, stop: int, count: int
) -> list[int]:
    """Return ``count`` + 1 offsets from ``start`` to ``stop`` with about equal bytes between them.

    The bytes are those of the subscription's topics, measured in a few cells for each range.
    """

    def measured(low: int, high: int, cells: int) -> list[_Cell]:
        edges = [low + (high - low) * number // cells for number in range(cells + 1)]
        amounts = [amount_of(subscription, history, *each) for each in pairwise(edges)]
        sizes = [amount.nbytes + _ROW_BYTES * amount.rows for amount in amounts]
        return list(zip(edges, edges[1:], sizes, strict=False))

    found = measured(start, stop, min(_CELLS * count, _MOST_CELLS, stop - start))
    total = max(sum(size for _, _, size in found), 1)
    # With even messages, no cell has that much.
    large = max(total // count, 2 * total // len(found))
    for _ in range(_DIVISIONS):
        if len(found) > 2 * _MOST_CELLS:
            break
        parts = [
            measured(low, high, min(_CELLS, high - low))
            if size > large and high - low > 1
            else [(low, high, size)]
            for low, high, size in found
        ]
        found = list(chain.from_iterable(parts))
    return _cuts([start], stop, count, found)


def _cuts(cuts: list[int], stop: int, count: int, cells: Sequence[_Cell]) -> list[int]:
    """Append the ends of ``count`` ranges of ``cells`` to the start in ``cuts``."""
    total = max(sum(size for _, _, size in cells), 1)
    before, wanted = 0, 1
    for low, high, size in cells:
        while wanted < count and before + size >= total * wanted // count:
            inside = (total * wanted // count - before) * (high - low) // max(size, 1)
            cuts.append(min(low + inside, high))
            wanted += 1
        before += size
    return [*cuts, stop]


def _distinct(cuts: list[int]) -> list[int]:
    """Move cuts apart that are the same, as each range is a task; if there are enough offsets."""
    start, *inside, stop = cuts
    if stop - start <= len(inside):
        return cuts
    for number, cut in enumerate(inside):
        inside[number] = max(cut, (inside[number - 1] if number else start) + 1)
    for number in reversed(range(len(inside))):
        inside[number] = min(inside[number], stop - len(inside) + number)
    return [start, *inside, stop]


def _nearest(good: Sequence[int], cut: int, most: int) -> int:
    """Return the one of ``good`` that is nearest to ``cut``; ``cut`` if none is within ``most``."""
    at = bisect_left(good, cut)
    near = [one for one in good[max(at - 1, 0) : at + 1] if abs(one - cut) <= most]
    return min(near, key=lambda one: abs(one - cut), default=cut)
