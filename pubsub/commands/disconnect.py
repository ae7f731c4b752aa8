"""``pubsub disconnect``: ends the connection of a client."""

from __future__ import annotations

import click

from pubsub.commands.destination import destination, destination_options


@click.command("disconnect")
@click.argument("marks", nargs=-1, required=True, metavar="MARK...")
@click.option("--reason", metavar="TEXT", help="Recorded in the log, audit log and events.")
@destination_options
@click.pass_context
def disconnect(context: click.Context, marks: tuple[str, ...], reason: str | None) -> int:
    """Disconnect the clients with these marks; "pubsub sessions" lists them.

    A client gets its pending replies, and the goodbye of its protocol. It may connect
    again. For one that does not read its messages, repeat the command.

    The exit code is 1 if one of them is gone; the others are disconnected.
    """
    from pubsub.commands.api_client import Api, session_path
    from pubsub.commands.deleted_items import delete_each

    api = Api(destination(context))
    query = {} if reason is None else {"reason": reason}
    return delete_each(api, map(session_path, marks), query)


COMMAND = disconnect
