"""``archive``: writes messages to a table, each exactly once, partitioned by topic and day.

Exactly once: the source gives a batch the same messages in every attempt, and the table accepts a
batch of a query once, in one transaction.

Messages do not pass through Java: the stream has ranges of offsets, and a worker writes the
messages that it reads.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, Row, SparkSession

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.command_line.table_arguments import DEFAULT_CATALOG
from pubsub.pipeline.job_runs.job_errors import explain, summarize
from pubsub.pipeline.job_runs.job_runner import JobQuery
from pubsub.pipeline.job_runs.job_runner import main as run_alone
from pubsub.pipeline.job_runs.job_runner import run as run_query
from pubsub.pipeline.jobs import job_source
from pubsub.pipeline.jobs.offset_ranges import FORMAT, RangeSource, load_ranges
from pubsub.pipeline.options.connector_options import MESSAGES
from pubsub.pipeline.options.schemas import arrow_schema, schema_of
from pubsub.pipeline.tables.batch_order import commit_once
from pubsub.pipeline.tables.file_names import BatchId
from pubsub.pipeline.tables.files import WrittenFile
from pubsub.pipeline.tables.location import StorageError, target_location
from pubsub.pipeline.tables.partitions import LONG_TOPIC, with_buckets
from pubsub.pipeline.tables.spark import TableTarget

if TYPE_CHECKING:
    from pubsub.pipeline.tables.iceberg import IcebergTarget

Target: TypeAlias = "TableTarget | IcebergTarget"

NAME = "archive"
MESSAGES_IN_JAVA = False
_DAY = pa.field("day", pa.date32())
_LONG_TOPIC = pa.field(LONG_TOPIC, pa.string())


def rows(messages: pa.RecordBatch, buckets: bool) -> pa.RecordBatch:
    """Return the columns of the table: those of the messages, and their day (UTC).

    With ``buckets`` long names of topics are replaced (see ``with_buckets``).
    """
    dated = messages.append_column(_DAY, messages["timestamp"].cast(pa.date32()))
    return with_buckets(dated) if buckets else dated


def columns(headers: bool, buckets: bool) -> pa.Schema:
    """Return the columns of the table, with or without ``headers`` and ``long_topic``."""
    found = arrow_schema(schema_of(MESSAGES, headers)).append(_DAY)
    return found.append(_LONG_TOPIC) if buckets else found


def has_buckets(target: Target) -> bool:
    """Return whether the topics of the table are in the names of directories."""
    return target.kind == "delta" and "topic" in target.partition_by


def write_ranges(stream: Iterator[Row], target: Target, batch: BatchId) -> Iterator[WrittenFile]:
    """Read the ranges of a task and write the files of ``batch``; runs in a worker."""
    writer = target.writer(batch)
    buckets = has_buckets(target)
    for task_range in load_ranges(stream):
        for messages in task_range.read():
            writer.add(rows(messages, buckets))
    yield from writer.finish()


def save(
    batch: DataFrame,
    target: Target,
    headers: bool,
    query: str,
    number: int,
    repeatable: bool = True,
) -> int:
    """Write the messages of one batch of ranges to ``target``, once, and return their number.

    ``repeatable`` is as in ``commit_once``.
    """
    table = target.table(columns(headers, has_buckets(target)))
    table.create_if_missing()
    task = partial(write_ranges, target=target.prepared(), batch=BatchId(query, number))
    # mapInArrow would need pandas; the rows are few.
    files: list[WrittenFile] = batch.rdd.mapPartitions(task).collect()
    commit_once(table, files, query, number, repeatable)
    return sum(file.rows for file in files)


class Archive:
    """Writes batches to ``target``, and merges its small files in a thread at times."""

    def __init__(
        self, target: Target, headers: bool, compact_every: int, repeatable: bool = True
    ) -> None:
        self._target = target
        self._repeatable = repeatable
        self._headers = headers
        self._message_counts: dict[int, int] = {}
        self._compact_every = compact_every
        self._batches_since_compaction = 0
        self._compaction: threading.Thread | None = None

    def write_batch(self, batch: DataFrame, number: int, query: str) -> None:
        """Write one batch."""
        self._message_counts[number] = save(
            batch, self._target, self._headers, query, number, self._repeatable
        )
        self._batches_since_compaction += 1
        running = self._compaction is not None and self._compaction.is_alive()
        if self._batches_since_compaction >= self._compact_every and not running:
            self._batches_since_compaction = 0
            self._compaction = threading.Thread(target=self._compact_beside)
            self._compaction.start()

    def take_count(self, number: int) -> int:
        """Return and forget the number of messages in batch ``number``."""
        return self._message_counts.pop(number, 0)

    def compact(self) -> None:
        """Merge small files now. Raises PubSubError."""
        try:
            self._target.table(pa.schema([])).compact()
        except (PubSubError, OSError, DeltaError, pa.ArrowException) as error:
            raise StorageError(
                "small files were not merged, but all messages are in the table: "
                f"{explain(error) or summarize(error)}"
            ) from None

    def _compact_beside(self) -> None:
        """Merge in a thread; the next compaction tries again after a failure."""
        try:
            self.compact()
        except PubSubError as error:
            print(f"pubsub: {error}", file=sys.stderr)

    def finish(self) -> None:
        """Wait for a running compaction, and merge once more."""
        if self._compaction is not None:
            self._compaction.join()
        self.compact()


def open_target(options: argparse.Namespace) -> Target:
    """Return the table of the command line. Raises ConfigurationError and StorageError."""
    partition_by = tuple(options.partition_by.split(","))
    if options.format != "iceberg":
        if options.catalog_option or options.catalog != DEFAULT_CATALOG:
            raise ConfigurationError(
                f"--format {options.format}: --catalog and --catalog-option are for --format "
                "iceberg; add it, or leave them out"
            )
        return TableTarget(target_location(options), partition_by, options.format)
    # pyiceberg is in an extra of its own.
    from pubsub.pipeline.tables.iceberg import IcebergTarget
    from pubsub.pipeline.tables.iceberg_catalog import IcebergName

    if options.storage_option or options.storage_options_file:
        raise ConfigurationError(
            "--format iceberg: the catalog has the options of its storage; give them with "
            "--catalog-option, or in the configuration of pyiceberg, instead of --storage-option"
        )
    if options.checkpoint is None:
        raise ConfigurationError(
            "--format iceberg: option --checkpoint is required, as the catalog places the table"
        )
    name = IcebergName(options.to, options.catalog, tuple(options.catalog_option))
    return IcebergTarget(name, partition_by)


def check(options: argparse.Namespace) -> None:
    """Check the options. Raises ConfigurationError, StorageError and OSError."""
    job_source.check(options, NAME)
    open_target(options)


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job and return the exit code."""
    target = open_target(options)
    spark.dataSource.register(RangeSource)
    stream = job_source.stream(spark, options, NAME, headers=options.headers, source_format=FORMAT)
    # The table must exist before a checkpoint in its directory.
    target.table(columns(options.headers, has_buckets(target))).create_if_missing()
    # More messages can be lost when a batch is run again.
    repeatable = not options.skip_lost
    archive = Archive(target.running(), options.headers, options.compact_every, repeatable)
    query = JobQuery(
        stream,
        handle_batch=archive.write_batch,
        checkpoint_home=None if target.kind == "iceberg" else options.to,
        count_messages=archive.take_count,
        on_finished=archive.finish,
    )
    return run_query(NAME, query, options, stop)


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
