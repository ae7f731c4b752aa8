"""Runs of the job ``archive``."""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark.sql import SparkSession

from pubsub.pipeline.jobs import archive
from tests.histories import history
from tests.spark.job_once import options


def put(path: Path, *topics: str) -> None:
    """Append ten messages, to these topics in turn."""
    with history(path) as file:
        file.put_all(
            file.batch(topics[number % len(topics)], [b"%d" % number]) for number in range(10)
        )


def run(spark: SparkSession, path: Path, to: Path, *more: str) -> int:
    """Run the job once and return the exit code."""
    given = options("archive", "--path", path, "--to", to, "--once", *more)
    return archive.run(spark, given, threading.Event())
