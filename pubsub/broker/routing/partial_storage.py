"""Messages of several topics of which some are stored and others are not.

They are one batch, so that subscribers receive them in the order of publishing. The history gets
those of stored topics, each row of them that follow one another as a batch of its own: they keep
their numbers, between which those of the other messages are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from pubsub.broker.routing.batch import Batch, rows_with, with_used

if TYPE_CHECKING:
    from pubsub.broker.routing.mixed_topics import MixedTopics
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore
    from pubsub.kernel import Senders


def let_pass(store: IStore, batch: Batch) -> None:
    """Note that the history does not have the messages of ``batch``."""
    # The offset that it would have: a reader that continues from here misses nothing.
    batch.offset, batch.has_place = store.next_offset, False


def append_stored(
    store: IStore, mix: MixedTopics, batch: Batch, senders: Senders | None = None
) -> None:
    """Append the messages of ``batch``, of the topics of ``mix``, that are stored.

    Messages of several ``senders`` are all stored or none of them. Raises HistoryUnavailable;
    nothing is stored in that case.
    """
    topics = mix.topics
    batch.offset = store.next_offset
    if mix.uniform or mix.stored_alike:
        batch.has_place = topics[0].durability > 0
        if batch.has_place:
            store.append(mix.to_store(batch) if senders is None else batch, senders)
    else:
        _append_rows(store, topics, batch)


def _append_rows(store: IStore, topics: Sequence[Topic], batch: Batch) -> None:
    is_stored = [topic.durability > 0 for topic in topics]
    # The history does not name topics that are not stored.
    names = tuple([topic.name for topic in topics if topic.durability])
    counts = zip(is_stored, accumulate(is_stored), strict=True)
    places = [count - 1 if one else -1 for one, count in counts]
    columns, headers, at = batch.columns.remap(places), batch.headers, 0
    # The history groups what has the same tuple of topics.
    known = {names: names}
    for start, stop in rows_with(batch.columns, is_stored):
        own, row = names, columns.slice(at, at + stop - start)
        if row.count < len(names):
            # The history has a list of the topics of each row, which would be longer than the row.
            own, row = with_used(names, row)
            own = known.setdefault(own, own)
        store.append(
            Batch(
                own,
                row,
                batch.timestamp,
                batch.sequence + start,
                batch.sender,
                batch.protocol,
                None if headers is None else headers[start:stop],
            )
        )
        at += stop - start
    batch.unstored = frozenset([index for index, one in enumerate(is_stored) if not one])
