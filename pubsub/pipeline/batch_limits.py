"""How far a batch goes: limits on rows and bytes, over several partitions in proportion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pubsub.pipeline.history import TopicSize

_FIRST_WIDTH = 1024
# A search ends when what is left to search is less than this part of what was found.
_PRECISION = 16


@dataclass(frozen=True, slots=True)
class Amount:
    """How much there is to read in a range of offsets; an estimate that rows do not exceed."""

    rows: int
    nbytes: int


def estimate_amount(topics: Sequence[TopicSize], width: int) -> Amount:
    """What a range of ``width`` offsets holds if ``topics`` are those of the blocks it touches.

    A range that is smaller than the blocks is taken to have its share of their bytes.
    """
    messages = sum(topic.messages for topic in topics)
    nbytes = sum(topic.nbytes for topic in topics)
    rows = min(messages, width)
    return Amount(rows, nbytes if rows == messages else nbytes * rows // messages)


def divide_limit(limit: int, backlogs: Mapping[int, int]) -> dict[int, int]:
    """``limit`` divided among partitions by what each has waiting; none gets more than that."""
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    divided = {number: limit * waiting // total for number, waiting in backlogs.items()}
    # Whoever waits longest for a whole one gets what the division left over.
    order = sorted(backlogs, key=lambda number: divided[number] * total - limit * backlogs[number])
    for number in order[: limit - sum(divided.values())]:
        divided[number] += 1
    return divided


def fitting_stop(measure: Callable[[int, int], int], start: int, end: int, limit: int) -> int:
    """How far from ``start``, at the most to ``end``, the sum of ``measure`` is within ``limit``.

    Not quite as far as could be, so that it costs little; but at least one offset, as one message
    may be over the limit.
    """
    stop, used, width = start, 0, _FIRST_WIDTH
    while stop < end:
        further = min(stop + width, end)
        amount = measure(stop, further)
        if used + amount > limit:
            stop = _bisect(measure, stop, further, limit - used, start)
            break
        stop, used, width = further, used + amount, 2 * width
    return max(stop, min(start + 1, end))


def _bisect(measure: Callable[[int, int], int], low: int, high: int, limit: int, start: int) -> int:
    """The end of what fits from ``low`` on, where what ends at ``high`` does not."""
    base = low
    while high - low > max(1, (low - start) // _PRECISION):
        middle = (low + high) // 2
        if measure(base, middle) > limit:
            high = middle
        else:
            low = middle
    return low
