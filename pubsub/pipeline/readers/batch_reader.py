"""The reader of batch queries: a snapshot of the messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pubsub.pipeline.options.offset_options import EARLIEST, LATEST
from pubsub.pipeline.options.regions import Interval
from pubsub.pipeline.positions.topic_positions import Stretch
from pubsub.pipeline.readers.source_reader import SourceReader, snapshot_stretches
from pubsub.pipeline.tasks.planning import Task


class BatchReader(SourceReader, DataSourceReader):
    """Reads from ``startingOffsets`` to ``endingOffsets``, resolved when Spark plans the query."""

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises PubSubError."""
        options = self._options
        starts = self._places(options.starting, options.starting_timestamp, EARLIEST)
        ends = self._places(options.ending, options.ending_timestamp, LATEST)
        found = snapshot_stretches(starts, ends, options)
        # Spark requires at least one task.
        return list(self._tasks(self._narrow(found))) or [_EMPTY_TASK]

    def _narrow(self, found: Sequence[Stretch]) -> list[Stretch]:
        """Return the parts of the stretches with the rows that option filter can select."""
        region = self._options.region
        first = self._offsets_at(region.times.low)
        last = self._offsets_at(region.times.stop)
        narrow = []
        for one in found:
            number = one.partition
            wanted = region.offsets & Interval(one.start, one.stop)
            wanted &= Interval(first.get(number, wanted.low), last.get(number, wanted.stop))
            if region.partitions.low <= number < region.partitions.stop and not wanted.empty:
                narrow.append(replace(one, start=int(wanted.low), stop=int(wanted.stop)))
        return narrow

    def _offsets_at(self, timestamp: float) -> dict[int, int]:
        """Return the first offset of each partition at or after a time; nothing without one."""
        if math.isinf(timestamp):
            return {}
        # Timestamps never decrease with the offset.
        microseconds = min(max(int(timestamp), 0), _LAST_TIME)
        bounds = self._bounds(microseconds)
        return {number: found.offset_at_time for number, found in enumerate(bounds)}


_LAST_TIME = 2**63 - 1
_EMPTY_TASK = Task(0, 0, 0, "", None)
