"""``derive``: writes the result of a SELECT over the stream to a topic, a table or the console.

The views ``messages`` and ``events`` have the columns of the source. ``timestamp`` has a watermark,
so a query can aggregate by window.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import BinaryType, StringType

from pubsub.errors import ConfigurationError
from pubsub.pipeline.job_runs.job_runner import JobQuery
from pubsub.pipeline.job_runs.job_runner import main as run_alone
from pubsub.pipeline.job_runs.job_runner import run as run_query
from pubsub.pipeline.jobs import job_publisher, job_source
from pubsub.pipeline.jobs.feedback import Feedback
from pubsub.pipeline.jobs.metrics import spark_interval
from pubsub.pipeline.options.connector_options import EVENTS, MESSAGES
from pubsub.pipeline.tables.location import target_location
from pubsub.pipeline.tables.spark import TableTarget, arrow_columns, batch_saver
from pubsub.wire.text_file import read_text

NAME = "derive"
# The default ratio of the bytes to publish to those read, and the bytes of a message that is made
# of a small one.
_GROWTH = 3
_JSON_BYTES = 256
_PUBLISHED = ("topic", "value", "key", "headers")


def read_sql(path: str) -> str:
    """Return the statement in a file. Raises ConfigurationError and OSError."""
    return read_text(path).strip().removesuffix(";")


def parse_destination(text: str) -> tuple[str, str]:
    """Return kind and name in ``--to``. Raises ConfigurationError."""
    kind, _, name = text.partition(":")
    if text == "console" or kind == "topic" or (kind == "table" and name):
        return kind, name
    raise ConfigurationError(f"--to: expected topic:NAME, table:DIR or console, not {text!r}")


def checkpoint_home(options: argparse.Namespace) -> str | None:
    """Return the directory of the table, if there is one. Raises ConfigurationError."""
    kind, name = parse_destination(options.to)
    return name if kind == "table" else None


def to_messages(result: DataFrame, topic: str, feedback: Feedback | None) -> DataFrame:
    """Return the messages to publish: the columns of ``result`` if it has ``value``, else JSON
    rows.

    ``topic`` is the destination, or empty if the column ``topic`` has it. ``feedback`` refuses
    topics; None allows all. Raises ConfigurationError.
    """
    names = result.columns
    if not topic and "topic" not in names:
        raise ConfigurationError(
            "--to topic: the query has no column topic; add it, or use --to topic:NAME"
        )
    topic_column = F.lit(topic) if topic else F.col("topic")
    if feedback is not None:
        topic_column = F.lit(feedback.check(topic)) if topic else feedback.checked(topic_column)
    if "value" in names:
        unknown = [name for name in names if name not in _PUBLISHED]
        if unknown:
            raise ConfigurationError(
                f"--sql: the columns of a message are {', '.join(_PUBLISHED)}; "
                f"remove {', '.join(unknown)}"
            )
        kind = result.schema["value"].dataType
        value = F.col("value")
        if not isinstance(kind, BinaryType | StringType):
            value = value.cast("string")
        optional = [name for name in names if name in _PUBLISHED[2:]]
        return result.select(
            topic_column.alias("topic"), value.cast("binary").alias("value"), *optional
        )
    payload = [name for name in names if topic or name != "topic"]
    return result.select(
        topic_column.alias("topic"), F.to_json(F.struct(*payload)).cast("binary").alias("value")
    )


def view_kinds(sql: str) -> list[str]:
    """Return the views that ``sql`` names. Raises ConfigurationError if it names none."""
    kinds = [kind for kind in (MESSAGES, EVENTS) if re.search(rf"\b{kind}\b", sql, re.IGNORECASE)]
    if not kinds:
        raise ConfigurationError(
            "--sql: the query reads neither the view messages nor the view events"
        )
    return kinds


def create_views(spark: SparkSession, options: argparse.Namespace, kinds: Sequence[str]) -> None:
    """Create the views ``kinds``."""
    for kind in kinds:
        stream = job_source.stream(spark, options, f"{NAME}-{kind}", kind)
        timed = stream.withWatermark("timestamp", spark_interval(options.watermark))
        timed.createOrReplaceTempView(kind)


def check(options: argparse.Namespace) -> None:
    """Check the options. Raises ConfigurationError, StorageError and OSError."""
    kind, name = parse_destination(options.to)
    kinds = view_kinds(read_sql(options.sql))
    for each in kinds:
        job_source.check(options, f"{NAME}-{each}", each)
    if kind == "topic":
        check_publishing(options, name)
        if name and not options.allow_feedback:
            Feedback.of(options, kinds).check(name)
    elif kind == "table":
        _table_target(options, name)


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job and return the exit code."""
    kind, name = parse_destination(options.to)
    sql = read_sql(options.sql)
    if kind == "topic":
        check_publishing(options, name)
        bound_batches(options)
    kinds = view_kinds(sql)
    create_views(spark, options, kinds)
    result = spark.sql(sql)
    if not result.isStreaming:
        raise ConfigurationError(
            "--sql: the query reads neither the view messages nor the view events"
        )
    feedback = None if options.allow_feedback else Feedback.of(options, kinds)
    query = job_query(result, kind, name, options, feedback)
    return run_query(NAME, query, options, stop)


def check_publishing(options: argparse.Namespace, topic: str) -> None:
    """Raise ConfigurationError if the job cannot publish to ``topic``; see check_destination."""
    if options.checkpoint is None:
        raise ConfigurationError("--to topic: option --checkpoint is required")
    job_publisher.check_destination(options, "--to topic", topic or None)


def bound_batches(options: argparse.Namespace) -> None:
    """Bound the batches of a job that publishes by the broker's limits.

    More bytes may be published than were read: a row as JSON takes some hundred bytes. Raises
    Unreachable or Rejected.
    """
    if options.max_bytes is None:
        fits = job_publisher.JobPublisher(options, "").batch_bytes()
        options.max_bytes = fits // _GROWTH
        options.max_rows = min(options.max_rows, fits // _JSON_BYTES)


def job_query(
    result: DataFrame,
    kind: str,
    name: str,
    options: argparse.Namespace,
    feedback: Feedback | None,
) -> JobQuery:
    """Return the query that writes ``result`` to its destination; see ``to_messages``."""
    if kind == "table":
        target = _table_target(options, name)
        target.table(arrow_columns(result.schema)).create_if_missing()
        return JobQuery(result, handle_batch=batch_saver(target), checkpoint_home=name)
    if kind == "console":
        return JobQuery(result, configure_sink=_to_console)
    broker = job_source.broker_options(options)

    def to_topic(writer: DataStreamWriter) -> DataStreamWriter:
        return writer.format("pubsub").options(**broker)

    return JobQuery(to_messages(result, name, feedback), configure_sink=to_topic)


def _table_target(options: argparse.Namespace, name: str) -> TableTarget:
    partition_by = tuple(column for column in options.partition_by.split(",") if column)
    return TableTarget(target_location(options, name), partition_by)


def _to_console(writer: DataStreamWriter) -> DataStreamWriter:
    return writer.format("console").option("truncate", "false")


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
