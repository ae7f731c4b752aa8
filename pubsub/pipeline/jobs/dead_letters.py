"""``dead-letters``: writes malformed frames with their bytes, decoded as far as possible."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pubsub.pipeline.job_runs.job_runner import JobQuery
from pubsub.pipeline.job_runs.job_runner import main as run_alone
from pubsub.pipeline.job_runs.job_runner import run as run_query
from pubsub.pipeline.jobs import job_source
from pubsub.pipeline.jobs.dissect import dissect, dissectors
from pubsub.pipeline.options.connector_options import EVENTS
from pubsub.pipeline.tables.spark import batch_saver, target_by_day
from pubsub.wire.dissection import Dissector

NAME = "dead-letters"
_DECODED = StructType(
    [
        StructField("frame_type", StringType()),
        StructField("fields", StringType()),
        StructField("understood", LongType()),
        StructField("fault", StringType()),
    ]
)


def _decode(
    known: Mapping[str, Dissector], protocol: str | None, frame: bytes | None
) -> tuple[str, str, int, str]:
    found = dissect(known, protocol or "", bytes(frame or b""))
    return found.kind, json.dumps(found.fields, ensure_ascii=False), found.understood, found.fault


def rows(events: DataFrame) -> DataFrame:
    """Return the columns of the table. Frames are decoded one by one, as they are few."""
    decode = F.udf(partial(_decode, dissectors()), _DECODED, useArrow=False)
    bad = events.where("event = 'malformed'").withColumn("decoded", decode("protocol", "frame"))
    return bad.select(
        "partition", "offset", "timestamp", "protocol", "listener", "client", "session", "topic",
        "reason", "frame", "decoded.*", F.to_date("timestamp").alias("day"),
    )  # fmt: skip


def check(options: argparse.Namespace) -> None:
    """Check the options. Raises ConfigurationError and OSError."""
    job_source.check(options, NAME, EVENTS)
    target_by_day(options)


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job and return the exit code."""
    target = target_by_day(options)
    events = job_source.stream(spark, options, NAME, EVENTS)
    query = JobQuery(rows(events), handle_batch=batch_saver(target), checkpoint_home=options.to)
    return run_query(NAME, query, options, stop)


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
