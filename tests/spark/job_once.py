"""Runs jobs like the command does, in this process, on a stream made of files."""

from __future__ import annotations

import argparse
import threading
from types import ModuleType
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from pubsub.pipeline.command_line.arguments import job_parser
from pubsub.pipeline.jobs import job_source


def options(name: str, *arguments: object) -> argparse.Namespace:
    """Return the options of the job ``name`` for these arguments."""
    return job_parser(name).parse_args([str(argument) for argument in arguments])


def run(job: ModuleType, spark: SparkSession, stream: DataFrame, *arguments: object) -> int:
    """Run ``job --once`` with these arguments, on ``stream`` instead of a broker's stream."""
    given = options(job.NAME, *arguments, "--once")
    with patch.object(job_source, "stream", lambda *_args, **_named: stream):
        return int(job.run(spark, given, threading.Event()))
