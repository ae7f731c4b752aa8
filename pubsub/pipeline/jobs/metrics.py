"""``metrics``: counts, sizes, ages and senders of messages by topic and window.

A row is written once, when the watermark has passed the end of the window. Later messages are
counted in rows without a topic.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pubsub.pipeline.job_runs.job_runner import JobQuery
from pubsub.pipeline.job_runs.job_runner import main as run_alone
from pubsub.pipeline.job_runs.job_runner import run as run_query
from pubsub.pipeline.job_runs.late_messages import LateMessageCounter
from pubsub.pipeline.jobs import job_publisher, job_source
from pubsub.pipeline.tables.spark import TableTarget, append, target_by_day

NAME = "metrics"
_POINTS = (0.5, 0.95, 0.99)
# The rank of a percentile is accurate to one part in 200, half a percent.
_ACCURACY = 200
_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("window_start", _TIME),
        ("window_end", _TIME),
        ("topic", pa.string()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("size_p50", pa.int64()),
        ("size_p95", pa.int64()),
        ("size_p99", pa.int64()),
        ("size_max", pa.int64()),
        ("age_p50", pa.int64()),
        ("age_p95", pa.int64()),
        ("age_p99", pa.int64()),
        ("age_max", pa.int64()),
        ("senders", pa.int64()),
        ("late", pa.int64()),
        ("day", pa.date32()),
    ]
)


def with_windows(messages: DataFrame, length: float, watermark: float) -> DataFrame:
    """Return ``messages`` with the window of each. ``length`` and ``watermark`` are in seconds."""
    timed = messages.withWatermark("timestamp", spark_interval(watermark))
    return timed.withColumn("window", F.window("timestamp", spark_interval(length)))


def rows(windowed: DataFrame) -> DataFrame:
    """Return the columns of the table from the result of ``with_windows``.

    Sizes are in bytes and ages in milliseconds. The age of a message ends at the start of the batch
    that reads it.
    """
    age = F.greatest(F.lit(0), F.unix_millis(F.current_timestamp()) - F.unix_millis("timestamp"))
    measured = windowed.select(
        "window", "topic", "timestamp", "key", F.length("value").cast("long").alias("size"),
        age.alias("age"),
    )  # fmt: skip
    points = F.array(*map(F.lit, _POINTS))
    counted = measured.groupBy("window", "topic").agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum("size").alias("bytes"),
        F.percentile_approx("size", points, _ACCURACY).alias("sizes"),
        F.max("size").alias("size_max"),
        F.percentile_approx("age", points, _ACCURACY).alias("ages"),
        F.max("age").alias("age_max"),
        F.approx_count_distinct("key").alias("senders"),
    )
    named = [
        F.col(f"{name}s")[at].alias(f"{name}_p{round(100 * point)}")
        for name in ("size", "age")
        for at, point in enumerate(_POINTS)
    ]
    flat = counted.select(
        "*",
        *named,
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        F.lit(0).cast("long").alias("late"),
        F.to_date("window.start").alias("day"),
    )
    return flat.select(*SCHEMA.names)


def spark_interval(seconds: float) -> str:
    """Return a duration as Spark parses it."""
    return f"{round(seconds * 1000)} milliseconds"


def late_rows(late: dict[int, int], length: float) -> pa.Table:
    """Return a row without a topic for each window with late messages."""
    ends = [datetime.fromtimestamp(end, UTC) for end in late]
    starts = [end - timedelta(seconds=length) for end in ends]
    count = len(late)
    columns = {name: pa.nulls(count, SCHEMA.field(name).type) for name in SCHEMA.names}
    return pa.table(
        {
            **columns,
            "window_start": pa.array(starts, _TIME),
            "window_end": pa.array(ends, _TIME),
            "late": pa.array(late.values(), pa.int64()),
            "day": pa.array([start.date() for start in starts], pa.date32()),
        },
        schema=SCHEMA,
    )


def as_json(table: pa.Table) -> list[bytes]:
    """Return each row as a JSON object for publishing; times are in ISO 8601."""
    found = table.drop_columns(["day"]).to_pylist()
    return [json.dumps(row, default=_iso, ensure_ascii=False).encode() for row in found]


def _iso(value: date) -> str:
    return value.isoformat()


class Metrics:
    """Writes rows to ``target``, and publishes them if ``publisher`` is given."""

    def __init__(
        self,
        target: TableTarget,
        length: float,
        publisher: job_publisher.JobPublisher | None = None,
    ) -> None:
        self._target = target
        self._length = length
        self._publisher = publisher

    def write_batch(self, batch: DataFrame, number: int, query: str) -> None:
        """Write one batch. Its rows are few, so the driver writes them."""
        found = batch.toArrow().cast(SCHEMA)
        if not found.num_rows:
            return
        append(self._target, found, query, number)
        if self._publisher is not None:
            self._publisher.publish(as_json(found), query, number)

    def write_late(self, late: dict[int, int], query: str, number: int) -> None:
        """Write the late messages of one batch."""
        append(self._target, late_rows(late, self._length), f"{query}-late", number)


def check(options: argparse.Namespace) -> None:
    """Check the options. Raises ConfigurationError and OSError."""
    job_source.check(options, NAME)
    if options.publish is not None:
        job_publisher.check_destination(options, "--publish", options.publish)
    target_by_day(options)


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job and return the exit code."""
    publisher = None
    if options.publish is not None:
        publisher = job_publisher.JobPublisher(options, options.publish)
    metrics = Metrics(target_by_day(options), options.window, publisher)
    late_counter = LateMessageCounter(metrics.write_late)
    messages = job_source.stream(spark, options, NAME)
    windowed = with_windows(messages, options.window, options.watermark)
    observed = late_counter.observe(windowed, F.col("window.end"))
    query = JobQuery(
        rows(observed),
        handle_batch=metrics.write_batch,
        checkpoint_home=options.to,
        late_counter=late_counter,
    )
    return run_query(NAME, query, options, stop)


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
