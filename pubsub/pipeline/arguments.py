"""The command lines of the jobs. Imports nothing heavy: ``--help`` needs no Spark.

``pubsub pipeline <job>`` and ``spark-submit .../jobs/<job>.py`` take the same.
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
    """Seconds from a time such as 500ms, 10s, 5m, 12h or 7d."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a time such as 10s, 5m or 12h, not {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def parse_positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, not {text!r}")
    return int(text)


def parse_setting(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, not {text!r}")
    return name, value


def parse_master(text: str) -> str:
    """A cluster's URL as Spark takes it, or local."""
    if not _MASTER.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"expected spark://HOST:PORT, yarn, k8s://... or local[N], not {text!r}"
        )
    return text


def parse_time(text: str, option: str) -> datetime:
    """A time in ISO 8601 that says its zone. Raises ConfigurationError."""
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
    """The times that ``--since`` and ``--until`` give. Raises ConfigurationError."""
    since, until = options.since, options.until
    return (
        None if since is None else parse_time(since, "--since"),
        None if until is None else parse_time(until, "--until"),
    )


def _add_time_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="TIME", help="first time, in ISO 8601 with its zone")
    parser.add_argument("--until", metavar="TIME", help="time to stop before")


def _add_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument(
        "--master",
        type=parse_master,
        help="a cluster, such as spark://host:7077 (default: this machine, all cores)",
    )
    group.add_argument(
        "--conf",
        type=parse_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be repeated",
    )
    group.add_argument(
        "--verbose", action="store_true", help="Spark's warnings, and errors with their stack"
    )


def _add_source(parser: argparse.ArgumentParser, topics: bool) -> None:
    group = parser.add_argument_group("what is read")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--url", help=f"HTTP API of the broker, or of several with commas (default {DEFAULT_URL})"
    )
    where.add_argument("--path", help="a broker's history file instead, on this machine")
    group.add_argument("--token-file", help="a file with the token for the HTTP API")
    if topics:
        which = group.add_mutually_exclusive_group()
        which.add_argument(
            "--subscribe", help="topics, with commas or as a JSON list (default all)"
        )
        which.add_argument("--subscribe-pattern", help="a regular expression of whole topic names")
    group.add_argument(
        "--starting",
        default="earliest",
        metavar="WHERE",
        help="where the first run begins: earliest, latest, a time in ISO 8601 with its zone, or "
        "JSON of partitions and offsets (default earliest)",
    )
    group.add_argument(
        "--max-rows",
        type=parse_positive,
        default=2_000_000,
        help="messages in a batch (default 2000000)",
    )


def _add_streaming(parser: argparse.ArgumentParser, trigger: str) -> None:
    group = parser.add_argument_group("when")
    group.add_argument("--once", action="store_true", help="take what is there, then end")
    group.add_argument(
        "--trigger",
        type=parse_seconds,
        default=parse_seconds(trigger),
        metavar="TIME",
        help=f"from the start of a batch to that of the next (default {trigger})",
    )
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="where it remembers how far it is (default: _checkpoints in the table's directory)",
    )


def _add_window(parser: argparse.ArgumentParser, window: str) -> None:
    parser.add_argument(
        "--window", type=parse_seconds, default=parse_seconds(window), metavar="TIME",
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
        help="topic,day or day, which is better from some hundred topics on (default topic,day)",
    )
    parser.add_argument("--headers", action="store_true", help="keep the headers, as a column more")
    parser.add_argument(
        "--compact-every",
        type=parse_positive,
        default=60,
        metavar="BATCHES",
        help="merge small files after so many batches, and at the end of --once (default 60)",
    )
    _add_source(parser, topics=True)
    _add_streaming(parser, "10s")


def _define_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="DIR", help="directory of the Delta table")
    parser.add_argument(
        "--publish",
        nargs="?",
        const=METRICS_TOPIC,
        metavar="TOPIC",
        help=f"publish each row as well, as JSON (default {METRICS_TOPIC})",
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
        metavar="TIME",
        help=f"how much later than others a message may come and still count (default {default})",
    )


def _define_sessions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="DIR", help="directory of the Delta table")
    parser.add_argument(
        "--longest",
        type=parse_seconds,
        default=parse_seconds("7d"),
        metavar="TIME",
        help="a session without an end is given up after it (default 7d)",
    )
    _add_watermark(parser, "10s")
    _add_source(parser, topics=False)
    _add_streaming(parser, "10s")


def _define_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="DIR", help="directory of the Delta table")
    _add_window(parser, "1m")
    parser.add_argument(
        "--threshold",
        type=parse_positive,
        metavar="N",
        help="alert once a client has N events of a kind on a topic in one window",
    )
    parser.add_argument(
        "--alerts", default=ALERTS_TOPIC, metavar="TOPIC", help=f"(default {ALERTS_TOPIC})"
    )
    _add_source(parser, topics=False)
    _add_streaming(parser, "5s")


def _define_dead_letters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="DIR", help="directory of the Delta table")
    _add_source(parser, topics=False)
    _add_streaming(parser, "10s")


def _define_derive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sql", required=True, metavar="FILE", help="a SELECT over the views messages and events"
    )
    parser.add_argument(
        "--to",
        required=True,
        metavar="WHERE",
        help="topic:NAME, table:DIR or console; topic: alone takes the column topic",
    )
    parser.add_argument(
        "--partition-by", default="", metavar="COLUMNS", help="of a table, with commas"
    )
    _add_watermark(parser, "10s")
    _add_source(parser, topics=True)
    _add_streaming(parser, "5s")


def _define_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", required=True, dest="table", metavar="DIR", help="the archive, a Delta table"
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"HTTP API of the broker (default {DEFAULT_URL})"
    )
    parser.add_argument("--token-file", help="a file with the token for the HTTP API")
    parser.add_argument("--subscribe", help="topics, with commas or as a JSON list (default all)")
    parser.add_argument(
        "--prefix", default="", help="what stands before the names of the topics replayed to"
    )
    _add_time_range(parser)
    parser.add_argument(
        "--rate", type=parse_positive, metavar="N", help="messages a second (default: all it can)"
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="where it remembers how far it is: with the same, an interrupted replay goes on",
    )


def _define_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="DIR", help="the table that the job metrics writes")
    parser.add_argument("--to", default="report.html", metavar="FILE", help="(default report.html)")
    _add_time_range(parser)
    parser.add_argument(
        "--topics", type=parse_positive, default=8, help="how many topics have a line (default 8)"
    )


JOBS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "archive": ("messages to a table, each once", _define_archive),
    "metrics": ("counts, sizes, ages and senders by topic and window", _define_metrics),
    "sessions": ("clients' sessions from the broker's events", _define_sessions),
    "audit": ("refusals, rotations and evictions by client and topic", _define_audit),
    "dead-letters": ("malformed frames, decoded as far as they go", _define_dead_letters),
    "replay": ("an archive back to topics", _define_replay),
    "derive": ("the result of a SQL file over the stream", _define_derive),
}
REPORT = ("a page with charts of the metrics table", _define_report)


def define(name: str, parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` the options of the job ``name``."""
    JOBS[name][1](parser)
    _add_running(parser)


def job_parser(name: str) -> argparse.ArgumentParser:
    """The command line of a job that is started by itself."""
    parser = argparse.ArgumentParser(prog=name, description=JOBS[name][0])
    define(name, parser)
    return parser
