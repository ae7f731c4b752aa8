"""A stream of ranges of offsets instead of messages, for who reads them where they are written.

Spark plans, divides and remembers such a stream as it does that of the messages, but what goes
through Java is a row a task. Whatever takes messages as Arrow batches in Python's workers, as a
writer of files does, is several times faster with it.

A row holds the options: a token has to be in a file, so that none is in a row.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from pubsub.errors import ConfigurationError
from pubsub.pipeline.connector_options import SourceOptions, source_options
from pubsub.pipeline.open_histories import open_histories
from pubsub.pipeline.planning import Task
from pubsub.pipeline.retry import Retry
from pubsub.pipeline.schemas import arrow_schema, schema_of
from pubsub.pipeline.source import PubSubSource, StreamReader
from pubsub.pipeline.task_reader import read_task

FORMAT = "pubsub_ranges"
_SCHEMA = StructType([StructField("range", BinaryType())])


@dataclass(frozen=True, slots=True)
class TaskRange:
    """One task's messages, which are where ``options`` say."""

    options: SourceOptions
    task: Task

    def read(self) -> Iterator[pa.RecordBatch]:
        """The messages, each once. Raises DataLoss, WrongLog, Rejected or Unreachable."""
        history = open_histories(self.options)[self.task.partition]
        schema = arrow_schema(schema_of(self.options.stream, self.options.headers))
        return read_task(history, self.task, self.options, schema, Retry())


def load_ranges(rows: Iterable[Row]) -> Iterator[TaskRange]:
    """What the rows of the stream say."""
    for row in rows:
        yield pickle.loads(row["range"])


class RangeSource(PubSubSource):
    """The format ``pubsub_ranges``; it takes the options of ``pubsub``."""

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` takes."""
        return FORMAT

    def schema(self) -> StructType:
        """One column, see ``load_ranges``."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """There is none."""
        raise ConfigurationError(f"format {FORMAT} can be read as a stream only")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Gives a row a task."""
        options = source_options(self.options, streaming=True)
        if options.credentials.token is not None:
            raise ConfigurationError(
                f"format {FORMAT}: use option tokenFile; option token would be in every row"
            )
        return RangeReader(options, schema)


class RangeReader(StreamReader):
    """What is there and what comes, a batch at a time, as ranges."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range of one task, in a worker."""
        assert isinstance(partition, Task)
        row = pickle.dumps(TaskRange(self._options, partition))
        yield pa.RecordBatch.from_arrays(
            [pa.array([row], pa.binary())], schema=arrow_schema(self._schema)
        )
