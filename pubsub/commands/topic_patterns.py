"""Patterns of MQTT and NATS where the command expects names of topics."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click

# Wildcards of MQTT are whole levels, and so are those of NATS.
_WILDCARD = re.compile(r"(?:(?<=/)|^)[+#](?=/|$)|(?:(?<=\.)|^)>$|\*")


def report_patterns(topics: Iterable[str], have_prefixes: bool) -> None:
    """Report topics that another broker would take as patterns, on standard error.

    They are names here, so that a command with one of them waits for messages, or finds none,
    without an error. With ``have_prefixes`` a ``*`` at the end is none of them.
    """
    for topic in topics:
        found = _WILDCARD.search(topic)
        if found is None or (have_prefixes and found.start() == len(topic) - 1 and found[0] == "*"):
            continue
        if have_prefixes:
            prefix = topic[: found.start()] + "*"
            remedy = f"a prefix is written {prefix!r}, and needs http or spot"
        else:
            remedy = "the history is read by names only"
        click.echo(f"pubsub: {topic!r} is the name of one topic here; {remedy}", err=True)
