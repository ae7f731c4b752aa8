"""Opens the stream that the command line of a job describes."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pubsub.pipeline.argument_groups import DEFAULT_URL
from pubsub.pipeline.argument_values import parse_time

_CONSOLE = "console"


def stream(
    spark: SparkSession,
    options: argparse.Namespace,
    name: str,
    kind: str = "messages",
    headers: bool = False,
    source_format: str = "pubsub",
) -> DataFrame:
    """Return the stream of messages or events; its reader name begins with ``name``."""
    reader = spark.readStream.format(source_format).options(**broker_options(options))
    reader = reader.option("stream", kind).option("maxOffsetsPerTrigger", str(options.max_rows))
    if options.max_bytes is not None:
        reader = reader.option("maxBytesPerTrigger", str(options.max_bytes))
    if options.skip_lost:
        reader = reader.option("failOnDataLoss", "false")
    place = options.checkpoint or options.to
    if options.path is None and place != _CONSOLE:
        # Only this checkpoint has the name, and a query can read the stream twice.
        reader = reader.options(readerName=reader_name(name, place), exclusiveReader="false")
    if kind == "messages":
        if options.subscribe:
            reader = reader.option("subscribe", options.subscribe)
        if options.subscribe_pattern:
            reader = reader.option("subscribePattern", options.subscribe_pattern)
        reader = reader.option("includeHeaders", str(headers).lower())
    return reader.option(*starting_option(options.starting)).load()


def reader_name(job: str, place: str) -> str:
    """Return the reader name of a job whose checkpoint is at or below ``place``.

    It is the same after a restart, and another one for another job or place.
    """
    whole = place if "://" in place else str(Path(place).absolute())
    return f"{job}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def broker_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options that name the broker or its file."""
    if options.path:
        return {"path": options.path}
    found = {"url": options.url or DEFAULT_URL}
    if options.token_file:
        found["tokenFile"] = options.token_file
    return found


def starting_option(text: str) -> tuple[str, str]:
    """Return name and value of the option for the start of the first run."""
    if text in ("earliest", "latest") or text.lstrip().startswith("{"):
        return "startingOffsets", text
    parse_time(text, "--starting")
    return "startingTimestamp", text
