"""The version, and errors in the command line as one line with the next step."""

from __future__ import annotations

import re

import click
from click.exceptions import NoSuchCommand

# The names that other tools have for commands; of several, the first that the group has is meant.
_MEANT = {
    "subscribe": ("sub",), "consume": ("sub",), "listen": ("sub",), "watch": ("sub",),
    "publish": ("pub",), "produce": ("pub",), "send": ("pub",),
    "ls": ("list", "topics"), "list": ("topics",), "streams": ("topics",), "topic": ("topics",),
    "rm": ("delete", "remove"), "del": ("delete", "remove"), "remove": ("delete",),
    "delete": ("remove", "topics delete"), "add": ("create", "make"),
    "create": ("make", "add", "topics create"),
    "new": ("create", "make", "add"), "select": ("use",), "switch": ("use",), "current": ("list",),
    "info": ("show", "status"), "get": ("show",), "verify": ("check",), "fix": ("repair",),
    "server": ("status",), "stats": ("status",), "top": ("status",), "health": ("status",),
    "clients": ("sessions",), "connections": ("sessions",), "kick": ("disconnect",),
    "users": ("passwd",), "user": ("passwd",), "password": ("passwd",),
    "stop": ("drain",), "shutdown": ("drain",), "benchmark": ("bench",), "perf": ("bench",),
}  # fmt: skip
_STARTS = ("start", "run", "serve", "broker")


def print_version(context: click.Context, _option: click.Parameter, given: bool) -> None:
    """Print the version and end, if ``--version`` was given."""
    if not given or context.resilient_parsing:
        return
    from pubsub.build_info import build_kind, version

    click.echo(f"pubsub {version()}, {build_kind()}")
    context.exit()


def usage_line(error: click.UsageError) -> str:
    """Return the error, the usage of the command, and the way to its help."""
    message = error.format_message()
    if isinstance(error, NoSuchCommand):
        message = _suggestion(error) or message
    text = " ".join(message.split()).rstrip(".")
    # Sentences of click become one clause each.
    text = re.sub(r"\. ([A-Z])", lambda found: f"; {found[1].lower()}", text)
    # Not of a name in capitals, such as MESSAGE.
    if not text[:2].isupper():
        text = text[:1].lower() + text[1:]
    context = error.ctx
    if context is None:
        return text
    if isinstance(error, click.NoSuchOption) and isinstance(context.command, click.Group):
        # Other tools have the options for the connection before the name of the command.
        text += "; give the options of a command after its name"
    usage = " ".join(context.get_usage().split()).removeprefix("Usage: ")
    return f"{text}; usage: {usage}; see {context.command_path} --help"


def _suggestion(error: NoSuchCommand) -> str:
    """Return the message for a command of another tool, else nothing."""
    name, context = error.command_name, error.ctx
    if context is None or not isinstance(context.command, click.Group):
        return ""
    if context.parent is None and name in _STARTS:
        return f"{error.message} A broker is started with twistd pubsub"
    known = context.command.list_commands(context)
    meant = next((one for one in _MEANT.get(name, ()) if one.split()[0] in known), None)
    return "" if meant is None else f"{error.message} Did you mean {meant!r}?"
