"""``pubsub topics``: lists topics, creates and deletes them, and replaces queue keys."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from pubsub.broker.quantity_text import quantity
from pubsub.commands.destination import destination, destination_options
from pubsub.commands.json_output import echo_json
from pubsub.commands.queue_key import given_queue_key, queue_key_options
from pubsub.commands.table_output import (
    Column,
    TableRow,
    number,
    print_rows,
    size,
    text,
    time_text,
)
from pubsub.errors import ConfigurationError

if TYPE_CHECKING:
    from pubsub.commands.api_client import Api


@click.group("topics", invoke_without_command=True, no_args_is_help=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each topic.")
@destination_options
@click.pass_context
def topics(context: click.Context, as_json: bool) -> None:
    """List the topics that have messages in the history, or change topics.

    "pubsub topics list" lists those that exist now, with their subscribers.

    Without a terminal, the name, the messages and the bytes of a topic are separated by tabs.
    """
    if context.invoked_subcommand is not None:
        return
    from pubsub.commands.api_client import Api

    rows = Api(destination(context)).get("/v1/topics", {"start": 0})["topics"]
    print_rows(_STORED_COLUMNS, rows, as_json)


_STORED_COLUMNS = (
    text("topic", "name"), number("messages", "messages"), number("bytes", "bytes"),
)  # fmt: skip
_COLUMNS = (
    text("topic", "name"),
    Column("durability", "durability"),
    number("subscribers", "subscribers"),
    number("messages", "messages"),
    size("bytes", "bytes"),
    Column("last message", "last_timestamp", time_text),
)


@topics.command("list")
@click.option("--match", metavar="PATTERN", help="Topics whose names match a shell pattern.")
@click.option("--all", "-a", "unused", is_flag=True, help="Also topics that no client has used.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each topic.")
@destination_options
@click.pass_context
def list_topics(context: click.Context, match: str | None, unused: bool, as_json: bool) -> None:
    """List the topics with their subscribers, and their messages since the broker's start.

    Topics that exist because a listener offers them, such as the channels of cafe, are listed once
    a client has published on them, and while a client subscribes to them.
    """
    from pubsub.commands.api_client import Api

    rows = _rows(Api(destination(context)), {} if match is None else {"match": match})
    left_out: list[TableRow] = []
    print_rows(_COLUMNS, rows if unused else _used(rows, left_out), as_json)
    if left_out and sys.stdout.isatty():
        what = quantity(len(left_out), "topic")
        click.echo(f"left out: {what} that no client has used; --all lists them", err=True)


def _rows(api: Api, query: Mapping[str, object]) -> Iterator[TableRow]:
    from pubsub.commands.api_client import RequestFailed

    try:
        yield from api.items("/v1/topics", {**query, "unused": 1})
    except RequestFailed as error:
        if "'unused'" not in str(error):
            raise
        # A broker of an earlier version lists all topics, and does not mark those that are used.
        yield from api.items("/v1/topics", query)


def _used(rows: Iterable[TableRow], left_out: list[TableRow]) -> Iterator[TableRow]:
    """Yield the rows of topics that are used; the others are added to ``left_out``."""
    for row in rows:
        if row.get("used", True):
            yield row
        else:
            left_out.append(row)


@topics.command("create")
@click.argument("name", metavar="TOPIC")
@queue_key_options("Close the topic with this key")
@click.option("--sync", is_flag=True, help="Acknowledge its messages when they are on disk.")
@click.option("--json", "as_json", is_flag=True, help="Print the topic as a JSON object.")
@destination_options
@click.pass_context
def create(
    context: click.Context,
    name: str,
    queue_key: str | None,
    queue_key_file: str | None,
    sync: bool,
    as_json: bool,
) -> None:
    """Create a topic, or change one that exists."""
    from pubsub.commands.api_client import Api, topic_path

    body: dict[str, object] = {"sync": sync}
    key = given_queue_key(queue_key, queue_key_file, required=False)
    if key is not None:
        body["queue_key"] = key
    row = Api(destination(context)).put(topic_path(name), body)
    if as_json:
        echo_json(row)


@topics.command("rotate")
@click.argument("name", metavar="TOPIC")
@queue_key_options("The new key")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@destination_options
@click.pass_context
def rotate(
    context: click.Context,
    name: str,
    queue_key: str | None,
    queue_key_file: str | None,
    as_json: bool,
) -> None:
    """Replace the queue key of a topic; subscriptions without the new key end."""
    from pubsub.commands.api_client import Api, topic_path

    key = given_queue_key(queue_key, queue_key_file)
    found = Api(destination(context)).post(topic_path(name) + "/key", {"queue_key": key})
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(f"{quantity(found['kept'], 'subscription')} kept, {found['ended']} ended")


@topics.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@destination_options
@click.pass_context
def delete(context: click.Context, names: tuple[str, ...], yes: bool) -> int:
    """Delete topics with their messages, queue keys and subscriptions.

    The exit code is 1 if one of them does not exist; the others are deleted.
    """
    from pubsub.commands.api_client import Api, topic_path
    from pubsub.commands.deleted_items import delete_each

    api = Api(destination(context))
    if not yes and not _agreed(names):
        return 1
    return delete_each(api, map(topic_path, names))


def _agreed(names: Sequence[str]) -> bool:
    """Raises ConfigurationError if there is no terminal for the confirmation."""
    what = names[0] if len(names) == 1 else f"{len(names)} topics"
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{what}: not deleted, as there is no terminal for a confirmation; repeat it with --yes"
        )
    return click.confirm(f"Delete {what} and all messages?", err=True)


COMMAND = topics
