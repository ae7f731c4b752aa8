"""``archive``: messages to a table, each once, partitioned by topic and day.

Exactly once: the source gives a batch the same messages however often it is tried, and the table
takes a batch of a query once, in one transaction.
"""

from __future__ import annotations

import argparse
import sys
import threading

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pubsub.pipeline.jobs import reading
from pubsub.pipeline.running import Plan
from pubsub.pipeline.running import main as run_alone
from pubsub.pipeline.running import run as run_plan
from pubsub.pipeline.tables.spark import Target, save

NAME = "archive"


def rows(messages: DataFrame) -> DataFrame:
    """The table's columns: those of the messages, and the day (UTC) they came on."""
    return messages.withColumn("day", F.to_date("timestamp"))


class Archive:
    """Writes batches to ``target``, and merges its small files in a thread, after every so many."""

    def __init__(self, target: Target, compact_every: int) -> None:
        self._target = target
        self._every = compact_every
        self._since = 0
        self._compaction: threading.Thread | None = None

    def take(self, batch: DataFrame, number: int, query: str) -> None:
        """Write one batch."""
        save(batch, self._target, query, number)
        self._since += 1
        running = self._compaction is not None and self._compaction.is_alive()
        if self._since >= self._every and not running:
            self._since = 0
            self._compaction = threading.Thread(target=self.compact)
            self._compaction.start()

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
    archive = Archive(Target(options.to, by, options.format), options.compact_every)
    messages = reading.stream(spark, options, NAME, headers=options.headers)
    plan = Plan(rows(messages), home=options.to, handle=archive.take, finish=archive.finish)
    return run_plan(NAME, plan, options, stop)


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
