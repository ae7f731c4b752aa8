"""``pubsub disconnect``: ends the connection of a client."""

from __future__ import annotations

import click

from pubsub.commands.destination import destination, destination_options


@click.command("disconnect")
@click.argument("marks", nargs=-1, required=True, metavar="MARK...")
@click.option("--reason", metavar="TEXT", help="Recorded in the log, audit log and events.")
@destination_options
@click.pass_context
def disconnect(context: click.Context, marks: tuple[str, ...], reason: str | None) -> None:
    """Disconnect the clients with these marks; "pubsub sessions" lists them.

    A client gets its pending replies, and the goodbye of its protocol. It may connect
    again. For one that does not read its messages, repeat the command.
    """
    from pubsub.commands.api_client import Api, session_path

    api = Api(destination(context))
    for mark in marks:
        api.delete(session_path(mark), {} if reason is None else {"reason": reason})


COMMAND = disconnect
