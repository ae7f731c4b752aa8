"""The version, and errors in the command line as one line with the next step."""

from __future__ import annotations

import re

import click


def print_version(context: click.Context, _option: click.Parameter, given: bool) -> None:
    """Print the version and end, if ``--version`` was given."""
    if not given or context.resilient_parsing:
        return
    from pubsub.build_info import build_kind, version

    click.echo(f"pubsub {version()}, {build_kind()}")
    context.exit()


def usage_line(error: click.UsageError) -> str:
    """Return the error, the usage of the command, and the way to its help."""
    text = " ".join(error.format_message().split()).rstrip(".")
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
