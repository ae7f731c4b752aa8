"""Limits on the rows and bytes of a batch, divided among partitions in proportion."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_FIRST_WIDTH = 1024
# A search ends when the range left to search is below this fraction of the range found.
_PRECISION = 16


def divide_limit(limit: int, backlogs: Mapping[int, int]) -> dict[int, int]:
    """Divide ``limit`` among partitions in proportion to their backlogs, and not beyond them."""
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    divided = {number: limit * waiting // total for number, waiting in backlogs.items()}
    # The partitions with the largest remainders get the remainder of the division.
    order = sorted(backlogs, key=lambda number: divided[number] * total - limit * backlogs[number])
    for number in order[: limit - sum(divided.values())]:
        divided[number] += 1
    return divided


def fitting_stop(measure: Callable[[int, int], int], start: int, end: int, limit: int) -> int:
    """Return an offset up to ``end`` before which ``measure`` from ``start`` is within ``limit``.

    To keep the search cheap, the result can be lower than the best one. It is at least one offset
    after ``start``, as a single message can exceed the limit.
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
    """Return an end of the range from ``low`` that fits; the range to ``high`` does not."""
    base = low
    while high - low > max(1, (low - start) // _PRECISION):
        middle = (low + high) // 2
        if measure(base, middle) > limit:
            high = middle
        else:
            low = middle
    return low
