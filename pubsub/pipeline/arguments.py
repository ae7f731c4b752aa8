"""The command lines of the jobs.

``pubsub pipeline <job>`` and ``spark-submit .../jobs/<job>.py`` have the same options. The module
does not import Spark, so ``--help`` works without it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from pubsub.errors import ConfigurationError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_URL = "http://127.0.0.1:7080"
METRICS_TOPIC = "$SYS/pipeline/metrics"
ALERTS_TOPIC = "$SYS/pipeline/alerts"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_MASTER = re.compile(r"local(\[[\d*,]+\])?|local-cluster\[[\d, ]+\]|(spark|k8s)://\S+|yarn")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_seconds(text: str) -> float:
    """Return the seconds in a duration such as 500ms, 10s, 5m, 12h or 7d."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a duration such as 10s, 5m or 12h, not {text!r}"
        )
    return float(match[1]) * _SECONDS[match[2]]


def parse_positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return int(text)


def parse_setting(text: str) -> tuple[str, str]:
    """Return the name and value in NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, not {text!r}")
    return name, value


def parse_master(text: str) -> str:
    """Return a master URL that Spark accepts."""
    if not _MASTER.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"expected spark://HOST:PORT, yarn, k8s://... or local[N], not {text!r}"
        )
    return text


def parse_time(text: str, option: str) -> datetime:
    """Return a time in ISO 8601 with a time zone. Raises ConfigurationError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ConfigurationError(
            f"{option}: expected a time such as 2026-01-31T12:00:00Z, not {text!r}"
        )
    return found


def time_range(options: argparse.Namespace) -> tuple[datetime | None, datetime | None]:
    """Return the times in ``--since`` and ``--until``. Raises ConfigurationError."""
    since, until = options.since, options.until
    return (
        None if since is None else parse_time(since, "--since"),
        None if until is None else parse_time(until, "--until"),
    )


def _add_time_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="TIME", help="start time, in ISO 8601 with a time zone")
    parser.add_argument(
        "--until", metavar="TIME", help="end time, exclusive, in ISO 8601 with a time zone"
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master",
        type=parse_master,
        metavar="URL",
        help="cluster to run on, such as spark://host:7077 (default: all cores of this machine)",
    )
    group.add_argument(
        "--conf",
        type=parse_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting for Spark; may be repeated",
    )
    group.add_argument(
        "--verbose", action="store_true", help="show warnings of Spark, and stack traces of errors"
    )


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="DIR", help="directory of the Delta table")


def _add_token_file(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--token-file", metavar="FILE", help="file with the token for the HTTP API")


def _add_source(parser: argparse.ArgumentParser, topics: bool) -> None:
    group = parser.add_argument_group("source")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--url",
        help=f"HTTP API of the broker, or of several brokers, separated by commas "
        f"(default {DEFAULT_URL})",
    )
    where.add_argument("--path", metavar="FILE", help="history file of a broker on this machine")
    _add_token_file(group)
    if topics:
        which = group.add_mutually_exclusive_group()
        which.add_argument(
            "--subscribe",
            metavar="TOPICS",
            help="topics, separated by commas or as a JSON list (default all)",
        )
        which.add_argument(
            "--subscribe-pattern",
            metavar="REGEX",
            help="regular expression that matches whole topic names",
        )
    group.add_argument(
        "--starting",
        default="earliest",
        metavar="WHERE",
        help="start of the first run: earliest, latest, a time in ISO 8601 with a time zone, or "
        "JSON with an offset for each partition (default earliest)",
    )
    group.add_argument(
        "--max-rows",
        type=parse_positive,
        metavar="N",
        default=2_000_000,
        help="most messages in a batch (default 2000000)",
    )


def _add_streaming(parser: argparse.ArgumentParser, trigger: str) -> None:
    group = parser.add_argument_group("schedule")
    group.add_argument(
        "--once", action="store_true", help="process the messages that exist now, then exit"
    )
    group.add_argument(
        "--trigger",
        type=parse_seconds,
        default=parse_seconds(trigger),
        metavar="DURATION",
        help=f"time between the starts of two batches (default {trigger})",
    )
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="directory for the progress of the job (default: _checkpoints in the table)",
    )


def _add_window(parser: argparse.ArgumentParser, window: str) -> None:
    parser.add_argument(
        "--window", type=parse_seconds, default=parse_seconds(window), metavar="DURATION",
        help=f"length of a window (default {window})",
    )  # fmt: skip


def _define_archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="DIR", help="directory of the table")
    parser.add_argument("--format", choices=("delta", "parquet"), default="delta")
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
    _add_source(parser, topics=True)
    _add_streaming(parser, "10s")


def _define_metrics(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    parser.add_argument(
        "--publish",
        nargs="?",
        const=METRICS_TOPIC,
        metavar="TOPIC",
        help=f"also publish each row as JSON (default topic {METRICS_TOPIC})",
    )
    _add_window(parser, "10s")
    _add_watermark(parser, "5s")
    _add_source(parser, topics=True)
    _add_streaming(parser, "2s")


def _add_watermark(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--watermark",
        type=parse_seconds,
        default=parse_seconds(default),
        metavar="DURATION",
        help=f"how late a message may arrive and still be counted (default {default})",
    )


def _define_sessions(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    parser.add_argument(
        "--longest",
        type=parse_seconds,
        default=parse_seconds("7d"),
        metavar="DURATION",
        help="a session without an end is written after this time (default 7d)",
    )
    _add_watermark(parser, "10s")
    _add_source(parser, topics=False)
    _add_streaming(parser, "10s")


def _define_audit(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    _add_window(parser, "1m")
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
    _add_source(parser, topics=False)
    _add_streaming(parser, "5s")


def _define_dead_letters(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    _add_source(parser, topics=False)
    _add_streaming(parser, "10s")


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
    parser.add_argument(
        "--partition-by",
        default="",
        metavar="COLUMNS",
        help="partition columns of the table, separated by commas",
    )
    _add_watermark(parser, "10s")
    _add_source(parser, topics=True)
    _add_streaming(parser, "5s")


def _define_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        required=True,
        dest="table",
        metavar="DIR",
        help="directory of the archive, a Delta table",
    )
    parser.add_argument(
        "--url",
        default=DEFAULT_URL,
        metavar="URL",
        help=f"HTTP API of the broker (default {DEFAULT_URL})",
    )
    _add_token_file(parser)
    parser.add_argument(
        "--subscribe",
        metavar="TOPICS",
        help="topics, separated by commas or as a JSON list (default all)",
    )
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="prefix added to the names of the topics"
    )
    _add_time_range(parser)
    parser.add_argument(
        "--rate", type=parse_positive, metavar="N", help="messages a second (default: no limit)"
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="directory for the progress; an interrupted replay with the same one continues",
    )


def _define_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "table", metavar="DIR", help="directory of the table that the job metrics writes"
    )
    parser.add_argument(
        "--to", default="report.html", metavar="FILE", help="file to write (default report.html)"
    )
    _add_time_range(parser)
    parser.add_argument(
        "--topics",
        type=parse_positive,
        metavar="N",
        default=8,
        help="number of topics that get a line of their own (default 8)",
    )


JOBS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "archive": ("write messages to a table, each exactly once", _define_archive),
    "metrics": (
        "write counts, sizes, ages and senders of messages by topic and window",
        _define_metrics,
    ),
    "sessions": ("write the sessions of clients from the broker's events", _define_sessions),
    "audit": ("count refusals, rotations and evictions by client and topic", _define_audit),
    "dead-letters": ("write malformed frames, decoded as far as possible", _define_dead_letters),
    "replay": ("publish the messages of an archive again", _define_replay),
    "derive": ("write the result of a SQL query over the stream", _define_derive),
}
REPORT = ("write a page with charts of the metrics table", _define_report)


def define(name: str, parser: argparse.ArgumentParser) -> None:
    """Add the options of the job ``name`` to ``parser``."""
    JOBS[name][1](parser)
    _add_running(parser)


def job_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a job that runs as a program of its own."""
    parser = argparse.ArgumentParser(prog=name, description=JOBS[name][0])
    define(name, parser)
    return parser
