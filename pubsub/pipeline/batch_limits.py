"""How far a batch goes: limits on rows and bytes, over several partitions in proportion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pubsub.pipeline.logs import TopicSize

_FIRST_STEP = 1024
# A search ends when what is left to search is less than this part of what was found.
_PRECISION = 16


@dataclass(frozen=True, slots=True)
class Amount:
    """How much there is to read in a range of offsets; an estimate that rows do not exceed."""

    rows: int
    nbytes: int


def amount_of(topics: Sequence[TopicSize], width: int) -> Amount:
    """What a range of ``width`` offsets holds if ``topics`` are those of the blocks it touches.

    A range that is smaller than the blocks is taken to have its share of their bytes.
    """
    messages = sum(topic.messages for topic in topics)
    nbytes = sum(topic.nbytes for topic in topics)
    rows = min(messages, width)
    return Amount(rows, nbytes if rows == messages else nbytes * rows // messages)


def shares(limit: int, backlogs: Mapping[int, int]) -> dict[int, int]:
    """``limit`` divided among partitions by what each has waiting; none gets more than that."""
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    parts = {number: limit * waiting // total for number, waiting in backlogs.items()}
    # Whoever waits longest for a whole one gets what the division left over.
    rest = sorted(backlogs, key=lambda number: parts[number] * total - limit * backlogs[number])
    for number in rest[: limit - sum(parts.values())]:
        parts[number] += 1
    return parts


def fit(measure: Callable[[int, int], int], start: int, end: int, limit: int) -> int:
    """How far from ``start``, at the most to ``end``, the sum of ``measure`` is within ``limit``.

    Not quite as far as could be, so that it costs little; but at least one offset, as one message
    may be over the limit.
    """
    stop, used, step = start, 0, _FIRST_STEP
    while stop < end:
        further = min(stop + step, end)
        more = measure(stop, further)
        if used + more > limit:
            stop = _between(measure, stop, further, limit - used, start)
            break
        stop, used, step = further, used + more, 2 * step
    return max(stop, min(start + 1, end))


def _between(
    measure: Callable[[int, int], int], low: int, high: int, limit: int, start: int
) -> int:
    """The end of what fits from ``low`` on, where what ends at ``high`` does not."""
    base = low
    while high - low > max(1, (low - start) // _PRECISION):
        middle = (low + high) // 2
        if measure(base, middle) > limit:
            high = middle
        else:
            low = middle
    return low
