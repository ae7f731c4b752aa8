"""The number of messages of each topic, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable

TopicCounts = dict[str, tuple[int, int]]
"""The number of messages of each topic and their bytes (see ``messages_nbytes``), by name."""


def add_counts(totals: TopicCounts, more: Iterable[tuple[str, tuple[int, int]]]) -> TopicCounts:
    """Add ``more`` to ``totals`` and return it."""
    for name, (count, nbytes) in more:
        messages, size = totals.get(name, (0, 0))
        totals[name] = (messages + count, size + nbytes)
    return totals
