"""The lag of a query behind the ends of the histories: messages, bytes, and their age."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from pubsub.pipeline.histories.history import History
from pubsub.pipeline.histories.topic_amounts import amount_of, requested_topics
from pubsub.pipeline.positions.topic_positions import Stretch


class LagMeter:
    """Measures the unread messages. ``clock`` is the time of day, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        # The first message of a stretch, by partition and start; a message is read once for it.
        self._first: dict[tuple[int, int], int] = {}

    def measure(self, history: History, unread: Sequence[Stretch]) -> dict[str, Any]:
        """Return the messages and bytes in the stretches, and the age of the oldest in seconds."""
        rows = nbytes = 0
        stamps = []
        for one in unread:
            amount = amount_of(one.reads, history, one.start, one.stop)
            rows, nbytes = rows + amount.rows, nbytes + amount.nbytes
            if amount.rows:
                stamps.append(self._first_timestamp(history, one))
        known = [stamp for stamp in stamps if stamp is not None]
        age = max(self._clock() - min(known) / 1e6, 0.0) if known else 0.0
        return {"messages": rows, "bytes": nbytes, "seconds": round(age, 3)}

    def _first_timestamp(self, history: History, one: Stretch) -> int | None:
        key = one.partition, one.start
        if key not in self._first:
            found = _read_timestamp(history, one)
            if found is None:
                return None
            self._first = {at: stamp for at, stamp in self._first.items() if at[0] != key[0]}
            self._first[key] = found
        return self._first[key]


def _read_timestamp(history: History, one: Stretch) -> int | None:
    topics = requested_topics(one.reads, history, one.start, one.stop)
    for item in history.read(one.start, one.stop, topics, False, one.epoch):
        if isinstance(item, pa.RecordBatch) and item.num_rows:
            stamp: int = item.column("timestamp").cast(pa.int64())[0].as_py()
            return stamp
    return None
