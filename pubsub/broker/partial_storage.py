"""Messages of several topics of which some are stored and others are not.

They are one batch, so that subscribers receive them in the order of publishing. The history gets
those of stored topics, each row of them that follow one another as a batch of its own: they keep
their numbers, between which those of the other messages are missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.topic_state import MixedTopics
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import IStore

_STORED = re.compile(b"\x01+")


def append_stored(store: IStore, mix: MixedTopics, batch: Batch) -> None:
    """Append the messages of ``batch``, of the topics of ``mix``, that are stored.

    Raises HistoryUnavailable; nothing is stored in that case.
    """
    topics = mix.topics
    batch.offset = store.next_offset
    if mix.uniform or mix.stored_alike:
        if topics[0].durability:
            store.append(batch)
    else:
        _append_rows(store, topics, batch)


def _append_rows(store: IStore, topics: Sequence[Topic], batch: Batch) -> None:
    flags = bytes([topic.durability > 0 for topic in topics])
    # In C, as a read has thousands of messages.
    stored = bytes(map(flags.__getitem__, batch.columns.indexes()))
    for row in _STORED.finditer(stored):
        store.append(batch.slice(*row.span()))
    batch.unstored = frozenset([index for index, flag in enumerate(flags) if not flag])
