"""The sink: each task writes its rows, and the driver commits after all tasks.

Over HTTP a task stages its rows at the broker, and the driver's commit appends all of them at once.
The broker remembers the batch, so a second run of it appends nothing. Over the other protocols a
task publishes its rows and returns when the broker has accepted them all; a second run of a batch
publishes them again.
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
from pubsub.pipeline.options.connector_options import Credentials, SinkOptions, sink_options
from pubsub.pipeline.options.schemas import check_sink_columns
from pubsub.pipeline.publishing.publisher_urls import (
    PublisherFactory,
    client_options,
    find_destination,
)
from pubsub.pipeline.publishing.shared_sink import (
    SharedBatch,
    SharedPartStager,
    at_any,
    check_shared,
)
from pubsub.pipeline.publishing.staged_writer import (
    PART_BYTES,
    PartPublisher,
    PartStager,
    StagedBatch,
    batch_bytes,
    batch_bytes_now,
)
from pubsub.store.reading import arrow

_HEADERS = arrow.schema(headers=True).field("headers").type
# These properties are undocumented; Kafka's sink and others also rely on them.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """The result of a task: the staged ``parts`` of ``query``, in order.

    ``url`` is the broker that has them, if there are several brokers.
    """

    query: str
    messages: int
    parts: tuple[str, ...] = ()
    url: str = ""


@dataclass(frozen=True)
class BrokerSink:
    """Writes rows to a broker, over HTTP if ``publishers`` is None. Pickled into every task."""

    options: SinkOptions
    publishers: PublisherFactory | None

    def write(
        self, batches: Iterator[pa.RecordBatch], query: str, batch_id: int, run: str = ""
    ) -> TaskResult:
        """Stage or publish the rows of a task. Raises PubSubError."""
        tables = (self._columns(batch) for batch in batches)
        if not self.options.atomic:
            return self._publish_parts(tables, query)
        if self._is_shared:
            return self._stage_shared(tables, self._shared(query, batch_id, run))
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

    @staticmethod
    def _stage_shared(tables: Iterator[pa.RecordBatch], batch: SharedBatch) -> TaskResult:
        stager = SharedPartStager(batch)
        for table in tables:
            stager.add(table)
        return TaskResult(batch.query, stager.messages, stager.finish(), stager.url)

    def _publish_parts(self, tables: Iterator[pa.RecordBatch], query: str) -> TaskResult:
        """Publish the rows of a task in batches of its own."""
        context = TaskContext.get()
        task = f"{query}/{context.partitionId() if context else 0}"
        # A part ends with the rows that reach its size, so it can be twice as large.
        most = min(PART_BYTES, batch_bytes(*self._broker) // 2)
        publisher = PartPublisher(StagedBatch(*self._broker, task, 0), most)
        for table in tables:
            publisher.add(table)
        publisher.finish()
        return TaskResult(query, publisher.messages)

    @property
    def _broker(self) -> tuple[str, Credentials]:
        return self.options.urls[0], self.options.credentials

    @property
    def _is_shared(self) -> bool:
        return len(self.options.urls) > 1 and self.publishers is None

    def _shared(self, query: str, batch_id: int, run: str = "") -> SharedBatch:
        return SharedBatch(self.options.urls, self.options.credentials, query, batch_id, run)

    def _columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to publish, topic and value first. Raises ConfigurationError for
        nulls.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        chosen = self.options.topic is not None
        # Kafka's option overrides the column, which a frame has that was read from another topic.
        if "topic" not in columns or (self.options.kafka and chosen):
            topic = pa.scalar(self.options.topic, pa.string())
            columns["topic"] = pa.repeat(topic, batch.num_rows)
        elif chosen:
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
            # Spark marks each field as nullable or not; the broker's type does not.
            columns["headers"] = columns["headers"].cast(_HEADERS)
        order = [name for name in ("topic", "value", "key", "headers") if name in columns]
        return pa.RecordBatch.from_arrays([columns[name] for name in order], names=order)

    def check(self) -> None:
        """Raise PubSubError if the broker does not take the token.

        Otherwise a query whose stream is idle would show a wrong token only with its first rows.
        """
        if self.publishers is None and self.options.credentials.given:
            at_any(self.options.urls, lambda url: batch_bytes_now(url, self.options.credentials))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Append the staged parts once. Does nothing for rows that tasks have published."""
        results = [message for message in messages if isinstance(message, TaskResult)]
        parts = [part for result in results for part in result.parts]
        if parts and self._is_shared:
            homes = dict.fromkeys(result.url for result in results if result.parts)
            self._shared(results[0].query, batch_id).commit(parts, tuple(homes))
        elif parts:
            StagedBatch(*self._broker, results[0].query, batch_id).commit_next(parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Drop the staged parts. If no task has reported one, the broker drops them later."""
        results = [message for message in messages if isinstance(message, TaskResult)]
        if self._is_shared and results:
            self._shared(results[0].query, batch_id).abort()
        elif self.publishers is None and results:
            StagedBatch(*self._broker, results[0].query, batch_id).abort()


def make_sink(
    given: Any, schema: StructType, overwrite: bool, streaming: bool = False
) -> BrokerSink:
    """Return the sink for a frame with ``schema``. Raises ConfigurationError."""
    if overwrite:
        raise ConfigurationError("published messages cannot be overwritten: use mode append")
    options = sink_options(given, client_options())
    destination = find_destination(options)
    if not options.atomic and (streaming or destination.publishers is not None):
        raise ConfigurationError("option atomic=false is for a batch query over http(s)://")
    if len(options.urls) > 1 and destination.publishers is None:
        _check_brokers(options)
    check_sink_columns(schema, options.topic, destination.optional_columns, options.kafka)
    return BrokerSink(options, destination.publishers)


def _check_brokers(options: SinkOptions) -> None:
    """Raise ConfigurationError unless a batch can be written to any of the brokers."""
    if not options.atomic:
        raise ConfigurationError("option atomic=false is for one broker, not several")
    check_shared(options.urls, options.credentials)


def _rows(table: pa.RecordBatch) -> Iterator[tuple[str, bytes, bytes | None]]:
    topics, values = table.column("topic").to_pylist(), table.column("value").to_pylist()
    if "key" in table.schema.names:
        return zip(topics, values, table.column("key").to_pylist(), strict=True)
    return ((topic, value, None) for topic, value in zip(topics, values, strict=True))


class BatchWriter(DataSourceArrowWriter):
    """``df.write``: one batch of a query of its own."""

    def __init__(self, target: BrokerSink) -> None:
        self._sink = target
        # Set in the driver, so that the copies of this writer in tasks and commit share it.
        self._query = f"batch-{uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task; runs in a worker."""
        return self._sink.write(iterator, self._query, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit after every task has succeeded; runs in the driver."""
        self._sink.commit(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort after a task has failed; runs in the driver."""
        self._sink.abort(messages, 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``: batches identified by the ids of Spark's query and batch."""

    def __init__(self, target: BrokerSink) -> None:
        self._sink = target
        target.check()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task; runs in a worker."""
        query, batch_id, run = current_batch()
        return self._sink.write(iterator, query, batch_id, run)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit after every task has succeeded; runs in the driver, and again after a failure."""
        self._sink.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort after a task has failed; runs in the driver."""
        self._sink.abort(messages, batchId)


def current_batch() -> tuple[str, int, str]:
    """Return the ids of the query, the batch and the run of the current task.

    Raises PubSubError outside of a task.
    """
    context = TaskContext.get()
    query = context and context.getLocalProperty(_QUERY_ID)
    batch_id = context and context.getLocalProperty(_BATCH_ID)
    if not context or not query or not batch_id:
        raise PubSubError("Spark did not report the query and the batch of this task")
    # Spark groups the jobs of a query by the id of its run, which each start changes.
    return query, int(batch_id), context.getLocalProperty(_RUN_ID) or ""
