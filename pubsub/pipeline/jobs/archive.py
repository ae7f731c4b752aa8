"""``archive``: messages to a table, each once, partitioned by topic and day.

Exactly once: the source gives a batch the same messages however often it is tried, and the table
takes a batch of a query once, in one transaction.

Messages do not go through Java: the stream is one of ranges, and a worker writes what it reads.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from pubsub.pipeline.connector_options import MESSAGES
from pubsub.pipeline.job_runner import JobQuery
from pubsub.pipeline.job_runner import main as run_alone
from pubsub.pipeline.job_runner import run as run_query
from pubsub.pipeline.jobs import job_source
from pubsub.pipeline.offset_ranges import FORMAT, RangeSource, load_ranges
from pubsub.pipeline.schemas import arrow_schema, schema_of
from pubsub.pipeline.tables.names import Batch
from pubsub.pipeline.tables.parts import File
from pubsub.pipeline.tables.spark import Target

NAME = "archive"
_DAY = pa.field("day", pa.date32())


def rows(messages: pa.RecordBatch) -> pa.RecordBatch:
    """The table's columns: those of the messages, and the day (UTC) they came on."""
    return messages.append_column(_DAY, messages["timestamp"].cast(pa.date32()))


def columns(headers: bool) -> pa.Schema:
    """The table's columns, with or without ``headers``."""
    return arrow_schema(schema_of(MESSAGES, headers)).append(_DAY)


def write(stream: Iterator[Row], target: Target, batch: Batch) -> Iterator[File]:
    """In a worker: read the ranges of a task and write their files, which are of ``batch``."""
    parts = target.parts(batch)
    for each in load_ranges(stream):
        for messages in each.read():
            parts.add(rows(messages))
    yield from parts.finish()


def save(batch: DataFrame, target: Target, headers: bool, query: str, number: int) -> int:
    """Write the messages of one batch of ranges to ``target``, once; how many there are."""
    table = target.table(columns(headers))
    table.prepare()
    task = partial(write, target=target, batch=Batch(query, number))
    # Not mapInArrow, which needs pandas: there are few rows.
    files: list[File] = batch.rdd.mapPartitions(task).collect()
    table.commit(files, query, number)
    return sum(file.rows for file in files)


class Archive:
    """Writes batches to ``target``, and merges its small files in a thread, after every so many."""

    def __init__(self, target: Target, headers: bool, compact_every: int) -> None:
        self._target = target
        self._headers = headers
        self._written: dict[int, int] = {}
        self._every = compact_every
        self._since = 0
        self._compaction: threading.Thread | None = None

    def write_batch(self, batch: DataFrame, number: int, query: str) -> None:
        """Write one batch."""
        self._written[number] = save(batch, self._target, self._headers, query, number)
        self._since += 1
        running = self._compaction is not None and self._compaction.is_alive()
        if self._since >= self._every and not running:
            self._since = 0
            self._compaction = threading.Thread(target=self.compact)
            self._compaction.start()

    def written(self, number: int) -> int:
        """How many messages batch ``number`` had; asked for once."""
        return self._written.pop(number, 0)

    def compact(self) -> None:
        """Merge small files now."""
        self._target.table(pa.schema([])).compact()

    def finish(self) -> None:
        """Wait for what runs, and merge once more."""
        if self._compaction is not None:
            self._compaction.join()
        self.compact()


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job; returns the exit code."""
    by = tuple(options.partition_by.split(","))
    target = Target(os.path.abspath(options.to), by, options.format)
    archive = Archive(target, options.headers, options.compact_every)
    spark.dataSource.register(RangeSource)
    stream = job_source.stream(spark, options, NAME, headers=options.headers, source_format=FORMAT)
    # Before the checkpoint: where that is made in the table's directory, the table has to be first.
    target.table(columns(options.headers)).prepare()
    query = JobQuery(
        stream,
        handle_batch=archive.write_batch,
        checkpoint_home=options.to,
        count_messages=archive.written,
        on_finished=archive.finish,
    )
    return run_query(NAME, query, options, stop)


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
