"""``pubsub topics``: lists topics, and deletes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from pubsub.commands.destination import destination, destination_options
from pubsub.errors import ConfigurationError


@click.group("topics", invoke_without_command=True, no_args_is_help=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each topic.")
@destination_options
@click.pass_context
def topics(context: click.Context, as_json: bool) -> None:
    """List the topics that have messages in the history, or delete topics.

    Without a terminal, the name, the messages and the bytes of a topic are separated by tabs.
    """
    if context.invoked_subcommand is not None:
        return
    from pubsub.commands.api_client import Api

    rows = Api(destination(context)).get("/v1/topics")["topics"]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        for row in rows:
            click.echo(f"{row['name']}\t{row['messages']}\t{row['bytes']}")


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("topic")
    table.add_column("messages", justify="right")
    table.add_column("bytes", justify="right")
    for row in rows:
        table.add_row(Text(row["name"]), f"{row['messages']:,}", f"{row['bytes']:,}")
    Console().print(table)


@topics.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@destination_options
@click.pass_context
def delete(context: click.Context, names: tuple[str, ...], yes: bool) -> int:
    """Delete topics with their messages, queue keys and subscriptions."""
    from pubsub.commands.api_client import Api, topic_path

    api = Api(destination(context))
    if not yes and not _agreed(names):
        return 1
    for name in names:
        api.delete(topic_path(name))
    return 0


def _agreed(names: Sequence[str]) -> bool:
    """Raises ConfigurationError if there is nobody to ask."""
    what = names[0] if len(names) == 1 else f"{len(names)} topics"
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{what}: not deleted, because there is no terminal to ask at; repeat it with --yes"
        )
    return click.confirm(f"Delete {what} and all messages?", err=True)


COMMAND = topics
