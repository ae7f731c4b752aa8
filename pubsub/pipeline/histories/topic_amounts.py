"""The topics and the amount of messages that a selection of topics has in a range of a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pubsub.pipeline.histories.history import History, TopicSize
from pubsub.pipeline.options.topic_selection import TopicSelection


@dataclass(frozen=True, slots=True)
class Amount:
    """The rows and bytes in a range of offsets. The estimate of rows is an upper bound."""

    rows: int
    nbytes: int


def requested_topics(
    reads: TopicSelection, history: History, start: int, stop: int
) -> frozenset[str] | None:
    """Return the names to request in a range, or None for all topics.

    The names that match a pattern differ between ranges. Those that are wanted are looked up: to
    request one that may not be read would be an error.
    """
    if reads.chosen is not None or not reads.selective:
        return reads.chosen
    return frozenset(topic.name for topic in _covered(reads, history, start, stop))


def amount_of(reads: TopicSelection, history: History, start: int, stop: int) -> Amount:
    """Estimate the rows and bytes to read in a range."""
    return estimate_amount(_covered(reads, history, start, stop), stop - start)


def _covered(reads: TopicSelection, history: History, start: int, stop: int) -> list[TopicSize]:
    if reads.is_empty or start >= stop:
        return []
    return [topic for topic in history.topics(start, stop) if reads.covers(topic.name)]


def estimate_amount(topics: Sequence[TopicSize], width: int) -> Amount:
    """Estimate the contents of ``width`` offsets from ``topics``, those of the blocks they touch.

    A range smaller than its blocks gets its share of their bytes.
    """
    messages = sum(topic.messages for topic in topics)
    nbytes = sum(topic.nbytes for topic in topics)
    rows = min(messages, width)
    return Amount(rows, nbytes if rows == messages else nbytes * rows // messages)
