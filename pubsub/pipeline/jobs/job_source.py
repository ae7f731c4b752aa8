"""Opens the stream that the command line of a job describes, and checks its options."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pubsub.errors import ConfigurationError
from pubsub.pipeline.command_line.argument_groups import DEFAULT_URL
from pubsub.pipeline.command_line.argument_values import parse_time
from pubsub.pipeline.histories.open_histories import open_histories
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.options.connector_options import MESSAGES, Credentials, source_options

_CONSOLE = "console"


def stream(
    spark: SparkSession,
    options: argparse.Namespace,
    name: str,
    kind: str = MESSAGES,
    headers: bool = False,
    source_format: str = "pubsub",
) -> DataFrame:
    """Return the stream of messages or events; its reader name begins with ``name``."""
    settings = stream_options(options, name, kind, headers)
    return spark.readStream.format(source_format).options(**settings).load()


def check(options: argparse.Namespace, name: str, kind: str = MESSAGES) -> None:
    """Check the options of the stream without Spark and without the broker.

    Raises ConfigurationError, the errors of a history in a directory, and OSError for a file with a
    token that cannot be read.
    """
    parsed = source_options(stream_options(options, name, kind), streaming=True)
    check_token(parsed.credentials)
    if parsed.path is not None:
        (directory,) = open_histories(parsed)
        Retry().call(directory.bounds)


def check_token(credentials: Credentials) -> None:
    """Raise ConfigurationError for an empty file, and OSError for one that cannot be read."""
    if credentials.given and not credentials.read():
        raise ConfigurationError(f"--token-file: {credentials.file}: the file is empty")


def stream_options(
    options: argparse.Namespace, name: str, kind: str = MESSAGES, headers: bool = False
) -> dict[str, str]:
    """Return the options of the source. Raises ConfigurationError."""
    found = {**broker_options(options), "stream": kind}
    found["maxOffsetsPerTrigger"] = str(options.max_rows)
    if options.max_bytes is not None:
        found["maxBytesPerTrigger"] = str(options.max_bytes)
    if options.skip_lost:
        found["failOnDataLoss"] = "false"
    place = options.checkpoint or options.to
    if options.path is None and place != _CONSOLE:
        # Only this checkpoint has the name, and a query can read the stream twice.
        found |= {"readerName": reader_name(name, place), "exclusiveReader": "false"}
    if kind == MESSAGES:
        if options.subscribe:
            found["subscribe"] = options.subscribe
        if options.subscribe_pattern:
            found["subscribePattern"] = options.subscribe_pattern
        found["includeHeaders"] = str(headers).lower()
    option, value = starting_option(options.starting)
    return {**found, option: value}


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
    parse_time(text, "--starting", "earliest, latest, JSON with offsets, or ")
    return "startingTimestamp", text
