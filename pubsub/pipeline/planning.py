"""Divides the offsets that a query reads into tasks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from pubsub.pipeline.history import History
from pubsub.pipeline.topic_selection import TopicSelection

# Cells in which bytes are measured for each range, and at most.
_CELLS = 4
_MOST_CELLS = 128
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
        rows = subscription.amount(history, whole.start, whole.stop).rows
    count = max(1, -(-rows // rows_per_task), min(parts, rows))
    if count > 1 and (parts > 1 or rows < width // 2):
        cuts = cuts_by_bytes(history, subscription, whole.start, whole.stop, count)
    else:
        cuts = [whole.start + width * number // count for number in range(count + 1)]
    if count > 1:
        good = history.cuts(whole.start, whole.stop)
        cuts[1:-1] = [_nearest(good, cut, width // count // 4) for cut in cuts[1:-1]]
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
    cells = min(_CELLS * count, _MOST_CELLS, stop - start)
    edges = [start + (stop - start) * number // cells for number in range(cells + 1)]
    sizes = []
    for low, high in pairwise(edges):
        amount = subscription.amount(history, low, high)
        sizes.append(amount.nbytes + _ROW_BYTES * amount.rows)
    total = max(sum(sizes), 1)
    cuts, before, wanted = [start], 0, 1
    for (low, high), size in zip(pairwise(edges), sizes, strict=True):
        while wanted < count and before + size >= total * wanted // count:
            inside = (total * wanted // count - before) * (high - low) // max(size, 1)
            cuts.append(min(low + inside, high))
            wanted += 1
        before += size
    return [*cuts, stop]


def _nearest(good: Sequence[int], cut: int, most: int) -> int:
    """Return the one of ``good`` that is nearest to ``cut``; ``cut`` if none is within ``most``."""
    at = bisect_left(good, cut)
    near = [one for one in good[max(at - 1, 0) : at + 1] if abs(one - cut) <= most]
    return min(near, key=lambda one: abs(one - cut), default=cut)
