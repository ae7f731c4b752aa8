"""``audit``: counts refusals, rotations and evictions by client and topic, and sends alerts.

Each batch adds its counts as rows of its own at once; the count of a window is the sum of its rows.
So nothing waits for a watermark, and no event is too late.

A client is identified by its name and its address without the port, so reconnecting does not hide
it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pubsub.pipeline.job_runs.job_runner import JobQuery
from pubsub.pipeline.job_runs.job_runner import main as run_alone
from pubsub.pipeline.job_runs.job_runner import run as run_query
from pubsub.pipeline.jobs import job_publisher, job_source
from pubsub.pipeline.jobs.metrics import spark_interval
from pubsub.pipeline.options import connector_options
from pubsub.pipeline.tables.delta import open_delta
from pubsub.pipeline.tables.delta_layout import readable_dataset
from pubsub.pipeline.tables.spark import TableTarget, append, target_by_day

NAME = "audit"
EVENTS = ("refused", "rotated", "evicted", "dropped", "malformed", "suppressed")
KEYS = ("window_start", "window_end", "event", "protocol", "listener", "client", "topic", "reason")
_PORT = r":\d+$"
_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("window_start", _TIME),
        ("window_end", _TIME),
        *[(name, pa.string()) for name in KEYS[2:]],
        ("events", pa.int64()),
        ("times", pa.int64()),
        ("first", _TIME),
        ("last", _TIME),
        ("day", pa.date32()),
    ]
)


def relevant_events(events: DataFrame, length: float) -> DataFrame:
    """Return the events to count, with their window of ``length`` seconds."""
    chosen = events.where(F.col("event").isin(*EVENTS))
    chosen = chosen.withColumn("client", F.regexp_replace("client", _PORT, ""))
    return chosen.withColumn("window", F.window("timestamp", spark_interval(length)))


def rows(windowed: DataFrame) -> DataFrame:
    """Return the counts of a batch, as the columns of the table."""
    counted = windowed.groupBy("window", *KEYS[2:]).agg(
        F.count(F.lit(1)).alias("events"),
        # Equal events in one tick of the broker are one event with a count.
        F.sum(F.coalesce("messages", F.lit(1))).cast("long").alias("times"),
        F.min("timestamp").alias("first"),
        F.max("timestamp").alias("last"),
    )
    return counted.select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        *KEYS[2:],
        "events",
        "times",
        "first",
        "last",
        F.to_date("window.start").alias("day"),
    )


def new_alerts(known: pa.Table, new: pa.Table, threshold: int) -> list[dict[str, Any]]:
    """Return the groups whose ``times`` reached ``threshold`` with the ``new`` rows.

    ``known`` has all rows of the windows concerned, including ``new``.
    """
    before = _sums(known)
    added = _sums(new)
    return [
        {"alert": "threshold", "threshold": threshold, **dict(zip(KEYS, key, strict=True)),
         "times": before[key]}
        for key, count in added.items()
        if before[key] >= threshold > before[key] - count
    ]  # fmt: skip


def _sums(table: pa.Table) -> dict[tuple[Any, ...], int]:
    grouped = table.group_by(list(KEYS)).aggregate([("times", "sum")]).to_pylist()
    return {tuple(row[name] for name in KEYS): row["times_sum"] for row in grouped}


class Audit:
    """Writes counts to ``target``, and publishes alerts if ``publisher`` is given."""

    def __init__(
        self,
        target: TableTarget,
        publisher: job_publisher.JobPublisher | None = None,
        threshold: int = 0,
    ) -> None:
        self._target = target
        self._publisher = publisher
        self._threshold = threshold

    def write_batch(self, batch: DataFrame, number: int, query: str) -> None:
        """Write one batch."""
        new = rows(batch).toArrow().cast(SCHEMA)
        if not new.num_rows:
            return
        append(self._target, new, query, number)
        if self._publisher is None:
            return
        # The table holds the counts so far, so a restart does not lose them.
        first = pc.min(new["window_start"])
        where = self._target.location
        table = readable_dataset(where, open_delta(where))
        known = table.to_table(filter=pc.field("window_start") >= first).cast(SCHEMA)
        alerts = new_alerts(known, new, self._threshold)
        if alerts:
            self._publisher.publish([_dump(alert) for alert in alerts], query, number)


def _dump(alert: dict[str, Any]) -> bytes:
    return json.dumps(alert, default=lambda time: time.isoformat(), ensure_ascii=False).encode()


def check(options: argparse.Namespace) -> None:
    """Check the options. Raises ConfigurationError and OSError."""
    job_source.check(options, NAME, connector_options.EVENTS)
    if options.threshold is not None:
        job_publisher.check_destination(options, "--alerts", options.alerts)
    target_by_day(options)


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job and return the exit code."""
    target = target_by_day(options)
    audit = Audit(target)
    if options.threshold is not None:
        publisher = job_publisher.JobPublisher(options, options.alerts)
        audit = Audit(target, publisher, options.threshold)
    events = job_source.stream(spark, options, NAME, connector_options.EVENTS)
    counted = relevant_events(events, options.window)
    query = JobQuery(counted, handle_batch=audit.write_batch, checkpoint_home=options.to)
    return run_query(NAME, query, options, stop)


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
