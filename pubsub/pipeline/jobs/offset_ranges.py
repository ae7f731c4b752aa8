"""A stream of ranges of offsets, for jobs that read the messages in the workers.

Spark plans, divides and checkpoints this stream like one of messages, but only one row a task
passes through Java. This is several times faster for jobs that use Arrow batches in the Python
workers, such as one that writes files.

A row contains the options. Therefore a token must be in a file: the rows must not contain it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from pubsub.errors import ConfigurationError
from pubsub.pipeline.histories.open_histories import open_histories, with_shared_history
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.options.connector_options import SourceOptions, source_options
from pubsub.pipeline.options.schemas import arrow_schema, schema_of
from pubsub.pipeline.readers.shared_planning import SharedStreaming
from pubsub.pipeline.readers.stream_reader import StreamReader
from pubsub.pipeline.source import PubSubSource
from pubsub.pipeline.tasks.planning import Task
from pubsub.pipeline.tasks.task_reader import read_task

FORMAT = "pubsub_ranges"
_SCHEMA = StructType([StructField("range", BinaryType())])


@dataclass(frozen=True, slots=True)
class TaskRange:
    """The offsets of one task and the options to read them with."""

    options: SourceOptions
    task: Task

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read the messages, each once.

        Raises DataLoss, WrongHistory, Rejected or Unreachable.
        """
        history = open_histories(self.options, running=True)[self.task.partition]
        schema = arrow_schema(schema_of(self.options.stream, self.options.headers))
        return read_task(history, self.task, self.options, schema, Retry())


def load_ranges(rows: Iterable[Row]) -> Iterator[TaskRange]:
    """Return the ranges in the rows of the stream."""
    for row in rows:
        yield pickle.loads(row["range"])


class RangeSource(PubSubSource):
    """The format ``pubsub_ranges``; it has the options of ``pubsub``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema: one column, see ``load_ranges``."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Refuse a batch query."""
        raise ConfigurationError(f"format {FORMAT} can be read as a stream only")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader that gives a row for each task."""
        options = source_options(self.options, streaming=True)
        if options.credentials.token is not None:
            raise ConfigurationError(
                f"format {FORMAT}: use option tokenFile; option token would be in every row"
            )
        options = Retry().call(partial(with_shared_history, options))
        if options.shared:
            return SharedRangeReader(options, schema)
        return RangeReader(options, schema)


class RangeReader(StreamReader):
    """Reads existing and new ranges, a batch at a time."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the range of one task; runs in a worker."""
        assert isinstance(partition, Task)
        row = pickle.dumps(TaskRange(self._options, partition))
        yield pa.RecordBatch.from_arrays(
            [pa.array([row], pa.binary())], schema=arrow_schema(self._schema)
        )


class SharedRangeReader(SharedStreaming, RangeReader):
    """The same, of brokers that share a history."""
