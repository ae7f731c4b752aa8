"""``pubsub sessions``: lists the connections of clients, and shows one."""

from __future__ import annotations

import click

from pubsub.commands.destination import destination, destination_options
from pubsub.commands.json_output import echo_json
from pubsub.commands.table_output import (
    Column,
    number,
    print_facts,
    print_rows,
    size,
    text,
    time_text,
)

_STATES = ("live", "catching_up", "paused", "leaving")
_COLUMNS = (
    Column("mark", "mark"),
    Column("protocol", "protocol"),
    text("client", "client"),
    text("identity", "identity"),
    Column("state", "state"),
    number("subscriptions", "subscriptions"),
    number("in", "messages_in"),
    number("out", "messages_out"),
    size("queued", "queued_bytes"),
    number("behind", "behind"),
)


@click.group("sessions", invoke_without_command=True, no_args_is_help=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each session.")
@destination_options
@click.pass_context
def sessions(context: click.Context, as_json: bool) -> None:
    """List the connections of clients, or show one of them.

    A session is named by its mark, as in events and log lines. Without a terminal, the columns are
    separated by tabs.
    """
    if context.invoked_subcommand is None:
        _list(context, {}, as_json)


@sessions.command("list")
@click.option("--protocol", metavar="NAME", help="Sessions of this protocol only.")
@click.option("--client", metavar="PATTERN", help="Clients whose names match a shell pattern.")
@click.option("--state", type=click.Choice(_STATES), help="Sessions in this state only.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each session.")
@destination_options
@click.pass_context
def list_sessions(
    context: click.Context,
    protocol: str | None,
    client: str | None,
    state: str | None,
    as_json: bool,
) -> None:
    """List the connections of clients, in the order in which they began."""
    given = {"protocol": protocol, "client": client, "state": state}
    _list(context, {name: value for name, value in given.items() if value is not None}, as_json)


def _list(context: click.Context, query: dict[str, object], as_json: bool) -> None:
    from pubsub.commands.api_client import Api

    print_rows(_COLUMNS, Api(destination(context)).items("/v1/sessions", query), as_json)


@sessions.command("show")
@click.argument("mark")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@destination_options
@click.pass_context
def show(context: click.Context, mark: str, as_json: bool) -> None:
    """Show one session, and the topics that it has subscribed to."""
    from pubsub.commands.api_client import Api, session_path

    api = Api(destination(context))
    row = api.get(session_path(mark))
    topics = [one["topic"] for one in api.items("/v1/subscriptions", {"mark": mark})]
    if as_json:
        echo_json({**row, "topics": topics})
        return
    row["connected"] = time_text(row["connected"])
    print_facts((name.replace("_", " "), str(value)) for name, value in row.items())
    for topic in topics:
        print_facts([("topic", topic)])


COMMAND = sessions
