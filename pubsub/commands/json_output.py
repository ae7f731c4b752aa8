"""JSON on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from pubsub.broker.visible_text import visible


def json_text(value: object, **layout: Any) -> str:
    """Return ``value`` as JSON, for a terminal without the characters that it obeys.

    Clients choose names and payloads, and JSON has no escapes for the control characters from 7F
    on. ``layout`` are arguments of ``json.dumps``.
    """
    text = json.dumps(value, ensure_ascii=False, **layout)
    return visible(text) if sys.stdout.isatty() else text


def echo_json(value: object) -> None:
    """Print ``value`` as ``json_text``, at once."""
    click.echo(json_text(value))
