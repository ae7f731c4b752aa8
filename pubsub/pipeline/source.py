"""The data source ``pubsub``: the classes that Spark calls in the driver and in the workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pubsub.pipeline.connector_options import SourceOptions, source_options
from pubsub.pipeline.offset_options import EARLIEST, LATEST
from pubsub.pipeline.planning import Task
from pubsub.pipeline.positions import Stretch
from pubsub.pipeline.regions import Interval
from pubsub.pipeline.schemas import check_source_columns, schema_of
from pubsub.pipeline.source_reader import SourceReader, snapshot_stretches
from pubsub.pipeline.stream_reader import StreamReader


class PubSubSource(DataSource):
    """The format ``pubsub``. For its options, see ``pubsub.pipeline.connector_options``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pubsub"

    def schema(self) -> StructType:
        """Return the schema for the options ``stream``, ``includeHeaders`` and ``columns``.

        Spark asks for it in ``load``, so mistaken options are errors there.
        """
        options = source_options(self.options, None)
        return schema_of(options.stream, options.headers, options.kafka)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the messages that exist now."""
        return BatchReader(_parse_options(self.options, schema, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of existing and new messages."""
        return StreamReader(_parse_options(self.options, schema, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that publishes a frame."""
        # Workers that only read start faster without the sink.
        from pubsub.pipeline.sink import BatchWriter, make_sink

        return BatchWriter(make_sink(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer that publishes a stream."""
        from pubsub.pipeline.sink import StreamWriter, make_sink

        return StreamWriter(make_sink(self.options, schema, overwrite, streaming=True))


def _parse_options(given: Any, schema: StructType, streaming: bool) -> SourceOptions:
    options = source_options(given, streaming)
    check_source_columns(schema, schema_of(options.stream, options.headers, options.kafka))
    return options


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
