"""``sessions``: writes the sessions of clients, from the events connect and disconnect.

A session is written when it has ended. A session whose start is not in the history, and one without
an end within the longest duration, is written when that is certain.
"""

from __future__ import annotations

import argparse
import sys
import threading

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pubsub.pipeline.job_runs.job_runner import JobQuery
from pubsub.pipeline.job_runs.job_runner import main as run_alone
from pubsub.pipeline.job_runs.job_runner import run as run_query
from pubsub.pipeline.jobs import job_source
from pubsub.pipeline.jobs.metrics import spark_interval
from pubsub.pipeline.options.connector_options import EVENTS
from pubsub.pipeline.tables.spark import batch_saver, target_by_day

NAME = "sessions"
COLUMNS = (
    "session", "protocol", "listener", "client", "started", "ended", "seconds", "messages",
    "bytes", "reason", "day",
)  # fmt: skip


def rows(events: DataFrame, longest: float, watermark: float) -> DataFrame:
    """Return the columns of the table. ``longest`` and ``watermark`` are in seconds.

    ``started`` or ``ended`` is null where it is unknown, and ``seconds`` with it.
    """
    timed = events.withWatermark("timestamp", spark_interval(watermark))
    begun = timed.where("event = 'connect'").select(
        F.col("session").alias("begun"),
        F.col("timestamp").alias("started"),
        F.col("protocol").alias("protocol_begun"),
        F.col("listener").alias("listener_begun"),
        F.col("client").alias("client_begun"),
    )
    ended = timed.where("event = 'disconnect'").select(
        F.col("session").alias("over"), F.col("timestamp").alias("ended"),
        "protocol", "listener", "client", "messages", "bytes", "reason",
    )  # fmt: skip
    longest_interval = F.expr(f"interval {spark_interval(longest)}")
    pairs = begun.join(
        ended,
        (F.col("begun") == F.col("over"))
        & (F.col("ended") >= F.col("started"))
        & (F.col("ended") <= F.col("started") + longest_interval),
        "fullOuter",
    )
    length = (F.unix_micros("ended") - F.unix_micros("started")) / 1e6
    return pairs.select(
        F.coalesce("over", "begun").alias("session"),
        *[F.coalesce(name, f"{name}_begun").alias(name) for name in COLUMNS[1:4]],
        "started",
        "ended",
        length.alias("seconds"),
        "messages",
        "bytes",
        "reason",
        F.to_date(F.coalesce("ended", "started")).alias("day"),
    )


def check(options: argparse.Namespace) -> None:
    """Check the options. Raises ConfigurationError and OSError."""
    job_source.check(options, NAME, EVENTS)
    target_by_day(options)


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job and return the exit code."""
    target = target_by_day(options)
    events = job_source.stream(spark, options, NAME, EVENTS)
    table = rows(events, options.longest, options.watermark)
    query = JobQuery(table, handle_batch=batch_saver(target), checkpoint_home=options.to)
    return run_query(NAME, query, options, stop)


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
