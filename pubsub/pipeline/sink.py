"""The sink: what a task does with its rows, and what the driver does when all tasks are done.

Over HTTP a task stages its rows at the broker, and the driver's commit appends all of them at
once; the broker remembers the batch, so that running it again appends nothing. Over the protocols
a task publishes, and returns when the broker has taken everything; a batch that is run again is
published again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.connector_options import Credentials, SinkOptions, sink_options
from pubsub.pipeline.publisher_urls import PublisherFactory, client_options, find_destination
from pubsub.pipeline.schemas import check_sink_columns
from pubsub.pipeline.staged_writer import PartStager, StagedBatch
from pubsub.store import arrow

_HEADERS = arrow.schema(headers=True).field("headers").type
# Undocumented, but Kafka's sink and others rest on them as well.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What a task has done: ``parts`` of ``query`` are staged, in order."""

    query: str
    messages: int
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class BrokerSink:
    """Where rows go: over HTTP if ``publishers`` is None. Pickled into every task."""

    options: SinkOptions
    publishers: PublisherFactory | None

    def write(
        self, batches: Iterator[pa.RecordBatch], query: str, batch_id: int, run: str = ""
    ) -> TaskResult:
        """Stage or publish the rows of a task. Raises PubSubError."""
        tables = (self._columns(batch) for batch in batches)
        if self.publishers is None:
            return self._stage(tables, StagedBatch(*self._broker, query, batch_id, run))
        count = 0
        with self.publishers() as client:
            for table in tables:
                count += table.num_rows
                for topic, value, key in _rows(table):
                    client.add(topic, value, key)
            client.finish()
        return TaskResult(query, count)

    @staticmethod
    def _stage(tables: Iterator[pa.RecordBatch], batch: StagedBatch) -> TaskResult:
        stager = PartStager(batch)
        for table in tables:
            stager.add(table)
        return TaskResult(batch.query, stager.messages, stager.finish())

    @property
    def _broker(self) -> tuple[str, Credentials]:
        return self.options.url, self.options.credentials

    def _columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Topic and value first, as they are published. Raises ConfigurationError for nulls."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "topic" not in columns:
            topic = pa.scalar(self.options.topic, pa.string())
            columns["topic"] = pa.repeat(topic, batch.num_rows)
        elif self.options.topic is not None:
            columns["topic"] = pc.fill_null(columns["topic"], self.options.topic)
        for name in ("topic", "value"):
            if columns[name].null_count:
                raise ConfigurationError(
                    f"column {name} contains a null; every message needs a {name}"
                )
        for name in ("value", "key"):
            if name in columns:
                columns[name] = columns[name].cast(pa.binary())
        if "headers" in columns:
            # Spark says of each field whether there may be nulls, the broker does not care.
            columns["headers"] = columns["headers"].cast(_HEADERS)
        order = [name for name in ("topic", "value", "key", "headers") if name in columns]
        return pa.RecordBatch.from_arrays([columns[name] for name in order], names=order)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Append what was staged, once; does nothing where it has been published already."""
        results = [message for message in messages if isinstance(message, TaskResult)]
        parts = [part for result in results for part in result.parts]
        if parts:
            StagedBatch(*self._broker, results[0].query, batch_id).commit(parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Have the broker forget what was staged; without a word from any task it does so later."""
        results = [message for message in messages if isinstance(message, TaskResult)]
        if self.publishers is None and results:
            StagedBatch(*self._broker, results[0].query, batch_id).abort()


def make_sink(given: Any, schema: StructType, overwrite: bool) -> BrokerSink:
    """Where a frame of ``schema`` goes. Raises ConfigurationError."""
    if overwrite:
        raise ConfigurationError("published messages cannot be overwritten: use mode append")
    options = sink_options(given, client_options())
    destination = find_destination(options)
    check_sink_columns(schema, options.topic, destination.optional_columns)
    return BrokerSink(options, destination.publishers)


def _rows(table: pa.RecordBatch) -> Iterator[tuple[str, bytes, bytes | None]]:
    topics, values = table.column("topic").to_pylist(), table.column("value").to_pylist()
    if "key" in table.schema.names:
        return zip(topics, values, table.column("key").to_pylist(), strict=True)
    return ((topic, value, None) for topic, value in zip(topics, values, strict=True))


class BatchWriter(DataSourceArrowWriter):
    """``df.write``: one batch of a query of its own."""

    def __init__(self, target: BrokerSink) -> None:
        self._sink = target
        # Made once, in the driver: the tasks and the commit have copies of this writer.
        self._query = f"batch-{uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a worker."""
        return self._sink.write(iterator, self._query, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when every task has succeeded."""
        self._sink.commit(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when one has not."""
        self._sink.abort(messages, 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``: batches of Spark's query, by its id and theirs."""

    def __init__(self, target: BrokerSink) -> None:
        self._sink = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a worker."""
        query, batch_id, run = current_batch()
        return self._sink.write(iterator, query, batch_id, run)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when every task has succeeded; may be run again for the same batch."""
        self._sink.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when one has not."""
        self._sink.abort(messages, batchId)


def current_batch() -> tuple[str, int, str]:
    """The ids of the query, the batch and the run that a task belongs to. Raises PubSubError."""
    context = TaskContext.get()
    query = context and context.getLocalProperty(_QUERY_ID)
    batch_id = context and context.getLocalProperty(_BATCH_ID)
    if not context or not query or not batch_id:
        raise PubSubError("Spark did not report the query and the batch of this task")
    # A query's jobs are a group of the name of its run; it changes when it is started again.
    return query, int(batch_id), context.getLocalProperty(_RUN_ID) or ""
