"""The options that several jobs have: source, schedule, Spark, windows and times."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pubsub.pipeline.command_line.argument_values import (
    add_setting,
    parse_bytes,
    parse_filled,
    parse_length,
    parse_master,
    parse_positive,
    parse_seconds,
)

DEFAULT_URL = "http://127.0.0.1:7080"


def add_time_range(parser: argparse.ArgumentParser) -> None:
    """Add the bounds of a range of times."""
    parser.add_argument("--since", metavar="TIME", help="start time, in ISO 8601 with a time zone")
    parser.add_argument(
        "--until", metavar="TIME", help="end time, exclusive, in ISO 8601 with a time zone"
    )


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add the options for Spark itself."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master",
        type=parse_master,
        metavar="URL",
        help="cluster to run on, such as spark://host:7077 (default: all cores of this machine)",
    )
    add_setting(group, "--conf", "setting for Spark; may be repeated")
    group.add_argument(
        "--debug",
        "--verbose",
        dest="verbose",
        action="store_true",
        help="show warnings of Spark, and errors with their stacks",
    )


def add_token_file(parser: argparse._ActionsContainer) -> None:
    """Add the file with the token for the HTTP API."""
    parser.add_argument(
        "--token-file",
        type=parse_filled,
        metavar="FILE",
        help="file with the token for the HTTP API",
    )


def add_source(parser: argparse.ArgumentParser, topics: bool) -> None:
    """Add the options of the source; those that choose topics if ``topics`` is true."""
    group = parser.add_argument_group("source")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--url",
        type=parse_filled,
        help=f"HTTP API of the broker, or of several brokers, separated by commas "
        f"(default {DEFAULT_URL})",
    )
    where.add_argument(
        "--path",
        type=parse_filled,
        metavar="DIR",
        help="directory of a history on this machine",
    )
    add_token_file(group)
    if topics:
        _add_topics(group)
    group.add_argument(
        "--starting",
        default="earliest",
        metavar="WHERE",
        help="start of the first run: earliest, latest, a time in ISO 8601 with a time zone, or "
        "JSON with an offset for each partition (default earliest)",
    )
    group.add_argument(
        "--skip-lost",
        action="store_true",
        help="skip messages that are no longer stored (default: an error)",
    )
    group.add_argument(
        "--max-rows",
        type=parse_positive,
        metavar="N",
        default=2_000_000,
        help="most messages in a batch (default 2000000)",
    )
    add_max_bytes(
        group,
        "most bytes of messages in a batch, such as 64m (default: no limit; derive to a topic: a "
        "quarter of what the broker takes)",
    )


def _add_topics(group: argparse._ActionsContainer) -> None:
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--subscribe",
        type=parse_filled,
        metavar="TOPICS",
        help="topics, separated by commas or as a JSON list (default all)",
    )
    which.add_argument(
        "--subscribe-pattern",
        type=parse_filled,
        metavar="REGEX",
        help="regular expression that matches whole topic names",
    )


def add_max_bytes(parser: argparse._ActionsContainer, text: str) -> None:
    """Add the limit of the bytes of a batch, with ``text`` as its help."""
    parser.add_argument("--max-bytes", type=parse_bytes, metavar="SIZE", help=text)


def add_streaming(parser: argparse.ArgumentParser, trigger: str) -> None:
    """Add the options of the schedule; ``trigger`` is the default time between two batches."""
    group = parser.add_argument_group("schedule")
    group.add_argument(
        "--once", action="store_true", help="process the messages that exist now, then exit"
    )
    _add_duration(group, "--trigger", trigger, "time between the starts of two batches")
    group.add_argument(
        "--checkpoint",
        type=parse_filled,
        metavar="DIR",
        help="directory for the progress of the job (default: _checkpoints in the table)",
    )


def add_window(parser: argparse.ArgumentParser, window: str) -> None:
    """Add the length of a window; ``window`` is its default."""
    _add_duration(parser, "--window", window, "length of a window", parse_length)


def add_watermark(parser: argparse.ArgumentParser, default: str) -> None:
    """Add how late a message may arrive; ``default`` is the default."""
    late = "how late a message may arrive and still be counted"
    _add_duration(parser, "--watermark", default, late)


def _add_duration(
    parser: argparse._ActionsContainer,
    option: str,
    default: str,
    text: str,
    parse: Callable[[str], float] = parse_seconds,
) -> None:
    parser.add_argument(
        option,
        type=parse,
        default=parse_seconds(default),
        metavar="DURATION",
        help=f"{text} (default {default})",
    )
