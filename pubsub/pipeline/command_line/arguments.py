"""The command lines of the jobs.

``pubsub pipeline <job>`` and ``spark-submit .../jobs/<job>.py`` have the same options. The module
does not import Spark, so ``--help`` works without it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from pubsub.pipeline.command_line.argument_groups import (
    DEFAULT_URL,
    add_max_bytes,
    add_running,
    add_source,
    add_streaming,
    add_time_range,
    add_token_file,
    add_watermark,
    add_window,
)
from pubsub.pipeline.command_line.argument_values import (
    parse_filled,
    parse_positive,
    parse_seconds,
)
from pubsub.pipeline.command_line.table_arguments import add_catalog, add_storage, add_table

METRICS_TOPIC = "$SYS/pipeline/metrics"
ALERTS_TOPIC = "$SYS/pipeline/alerts"


def _define_archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        required=True,
        type=parse_filled,
        metavar="DIR",
        help="directory or URL of the table, or NAMESPACE.TABLE in the catalog",
    )
    add_storage(parser)
    parser.add_argument("--format", choices=("delta", "iceberg", "parquet"), default="delta")
    add_catalog(parser)
    parser.add_argument(
        "--partition-by",
        choices=("topic,day", "day"),
        default="topic,day",
        metavar="COLUMNS",
        help="topic,day or day; use day with more than some hundred topics (default topic,day)",
    )
    parser.add_argument("--headers", action="store_true", help="add a column with the headers")
    parser.add_argument(
        "--compact-every",
        type=parse_positive,
        default=60,
        metavar="BATCHES",
        help="merge small files after this many batches and at the end of --once (default 60)",
    )


def _define_metrics(parser: argparse.ArgumentParser) -> None:
    add_table(parser)
    parser.add_argument(
        "--publish",
        nargs="?",
        const=METRICS_TOPIC,
        metavar="TOPIC",
        help=f"also publish each row as JSON (default topic {METRICS_TOPIC})",
    )
    add_window(parser, "10s")
    add_watermark(parser, "5s")


def _define_sessions(parser: argparse.ArgumentParser) -> None:
    add_table(parser)
    parser.add_argument(
        "--longest",
        type=parse_seconds,
        default=parse_seconds("7d"),
        metavar="DURATION",
        help="a session without an end is written after this time (default 7d)",
    )
    add_watermark(parser, "10s")


def _define_audit(parser: argparse.ArgumentParser) -> None:
    add_table(parser)
    add_window(parser, "1m")
    parser.add_argument(
        "--threshold",
        type=parse_positive,
        metavar="N",
        help="publish an alert when a client has N events of one kind on a topic in a window",
    )
    parser.add_argument(
        "--alerts",
        default=ALERTS_TOPIC,
        metavar="TOPIC",
        help=f"topic for alerts (default {ALERTS_TOPIC})",
    )


def _define_derive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sql",
        required=True,
        metavar="FILE",
        help="file with a SELECT over the views messages and events",
    )
    parser.add_argument(
        "--to",
        required=True,
        metavar="WHERE",
        help="topic:NAME, table:DIR or console; topic: without a name uses the column topic",
    )
    add_storage(parser)
    parser.add_argument(
        "--partition-by",
        default="",
        metavar="COLUMNS",
        help="partition columns of the table, separated by commas",
    )
    parser.add_argument(
        "--allow-feedback",
        action="store_true",
        help="publish to topics that the query reads; the query must exclude its own messages",
    )
    add_watermark(parser, "10s")


def _define_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        required=True,
        type=parse_filled,
        dest="table",
        metavar="DIR",
        help="directory or URL of the archive, a Delta table",
    )
    add_storage(parser)
    parser.add_argument(
        "--url",
        default=DEFAULT_URL,
        type=parse_filled,
        metavar="URL",
        help=f"HTTP API of the broker (default {DEFAULT_URL})",
    )
    add_token_file(parser)
    parser.add_argument(
        "--subscribe",
        type=parse_filled,
        metavar="TOPICS",
        help="topics, separated by commas or as a JSON list (default all)",
    )
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="prefix added to the names of the topics"
    )
    add_time_range(parser)
    parser.add_argument(
        "--rate", type=parse_positive, metavar="N", help="messages a second (default: no limit)"
    )
    add_max_bytes(parser, "most bytes published together (default: as the broker takes)")
    parser.add_argument(
        "--checkpoint",
        required=True,
        type=parse_filled,
        metavar="DIR",
        help="directory for the progress; an interrupted replay with the same one continues",
    )


def _define_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "table", metavar="DIR", help="directory or URL of the table that the job metrics writes"
    )
    add_storage(parser)
    parser.add_argument(
        "--to", default="report.html", metavar="FILE", help="file to write (default report.html)"
    )
    add_time_range(parser)
    parser.add_argument(
        "--topics",
        type=parse_positive,
        metavar="N",
        default=8,
        help="number of topics that get a line of their own (default 8)",
    )


def _define_migrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="DIR", help="directory or URL of a Delta table")
    add_storage(parser)


@dataclass(frozen=True, slots=True)
class Stream:
    """The stream that a job reads: whether topics can be chosen, and its default trigger."""

    topics: bool
    trigger: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job on the command line: its description, its own options, and its stream if it has one."""

    description: str
    add_options: Callable[[argparse.ArgumentParser], None]
    stream: Stream | None = None


JOBS = {
    "archive": Job(
        "write messages to a table, each exactly once",
        _define_archive,
        Stream(topics=True, trigger="10s"),
    ),
    "metrics": Job(
        "write counts, sizes, ages and senders of messages by topic and window",
        _define_metrics,
        Stream(topics=True, trigger="2s"),
    ),
    "sessions": Job(
        "write the sessions of clients from the broker's events",
        _define_sessions,
        Stream(topics=False, trigger="10s"),
    ),
    "audit": Job(
        "count refusals, rotations and evictions by client and topic",
        _define_audit,
        Stream(topics=False, trigger="5s"),
    ),
    "dead-letters": Job(
        "write malformed frames, decoded as far as possible",
        add_table,
        Stream(topics=False, trigger="10s"),
    ),
    "replay": Job("publish the messages of an archive again", _define_replay),
    "derive": Job(
        "write the result of a SQL query over the stream",
        _define_derive,
        Stream(topics=True, trigger="5s"),
    ),
}
REPORT = Job("write a page with charts of the metrics table", _define_report)
MIGRATE = Job(
    "name the directories of a table of an earlier version as other readers expect", _define_migrate
)
PREPARE = Job("prepare Java, so that jobs start in half the time", lambda parser: None)


def define(name: str, parser: argparse.ArgumentParser) -> None:
    """Add the options of the job ``name`` to ``parser``."""
    job = JOBS[name]
    job.add_options(parser)
    if job.stream is not None:
        add_source(parser, job.stream.topics)
        add_streaming(parser, job.stream.trigger)
    add_running(parser)


def job_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a job that runs as a program of its own."""
    parser = argparse.ArgumentParser(prog=name, description=JOBS[name].description)
    define(name, parser)
    return parser
