"""The values on the command lines of the jobs, and their errors."""

from __future__ import annotations

import argparse
import re
from datetime import datetime

from pubsub.errors import ConfigurationError
from pubsub.settings import parse_size

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_MASTER = re.compile(r"local(\[[\d*,]+\])?|local-cluster\[[\d, ]+\]|(spark|k8s)://\S+|yarn")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_filled(text: str) -> str:
    """Return a text that is not empty, as that of a variable that is not set would be."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty; give one, or leave the option out")
    return text


def parse_seconds(text: str) -> float:
    """Return the seconds in a duration such as 500ms, 10s, 5m, 12h or 7d."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a duration such as 10s, 5m or 12h, not {text!r}"
        )
    return float(match[1]) * _SECONDS[match[2]]


def parse_length(text: str) -> float:
    """Return the seconds in a duration of at least a millisecond."""
    found = parse_seconds(text)
    if found < _SECONDS["ms"]:
        raise argparse.ArgumentTypeError(f"expected a duration of at least 1ms, not {text!r}")
    return found


def parse_positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return int(text)


def parse_bytes(text: str) -> int:
    """Return the bytes in a size such as 500k, 64m or 1g."""
    try:
        found = parse_size(text)
    except ValueError:
        found = 0
    if not found:
        raise argparse.ArgumentTypeError(f"expected bytes such as 500k, 64m or 1g, not {text!r}")
    return found


def parse_setting(text: str) -> tuple[str, str]:
    """Return the name and value in NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, not {text!r}")
    return name, value


def add_setting(parser: argparse._ActionsContainer, option: str, text: str) -> None:
    """Add an option with a name and a value, which may be repeated; ``text`` is its help."""
    parser.add_argument(
        option, type=parse_setting, action="append", default=[], metavar="NAME=VALUE", help=text
    )


def parse_master(text: str) -> str:
    """Return a master URL that Spark accepts."""
    if not _MASTER.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"expected spark://HOST:PORT, yarn, k8s://... or local[N], not {text!r}"
        )
    return text


def parse_time(text: str, option: str, others: str = "") -> datetime:
    """Return a time in ISO 8601 with a time zone. Raises ConfigurationError.

    ``others`` begins the list of the values that ``option`` takes besides.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ConfigurationError(
            f"{option}: expected {others}a time such as 2026-01-31T12:00:00Z, not {text!r}"
        )
    return found


def time_range(options: argparse.Namespace) -> tuple[datetime | None, datetime | None]:
    """Return the times in ``--since`` and ``--until``. Raises ConfigurationError."""
    since = None if options.since is None else parse_time(options.since, "--since")
    until = None if options.until is None else parse_time(options.until, "--until")
    if since is not None and until is not None and since >= until:
        raise ConfigurationError(
            f"--since: {options.since} is not before --until, {options.until}: nothing is between"
        )
    return since, until
