"""Runs of the jobs over a broker."""

from __future__ import annotations

import threading
from types import ModuleType

from pyspark.sql import SparkSession

from tests.spark.job_once import options


def run(job: ModuleType, spark: SparkSession, *arguments: object) -> int:
    """Run a job with these arguments."""
    return int(job.run(spark, options(job.NAME, *arguments), threading.Event()))
