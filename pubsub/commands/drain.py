"""``pubsub drain``: drains a broker, or one of its listeners."""

from __future__ import annotations

import click

from pubsub.commands.destination import destination, destination_options


@click.command("drain")
@click.option(
    "--listener",
    metavar="NAME",
    help="Drain this listener only: a protocol or an endpoint. The broker keeps running.",
)
@click.option(
    "--keep-running",
    is_flag=True,
    help="Drain every protocol, and leave the process and its HTTP API running.",
)
@destination_options
@click.pass_context
def drain(context: click.Context, listener: str | None, keep_running: bool) -> None:
    """Stop the broker: accept no clients, deliver queued messages, disconnect, and end.

    With --keep-running or --listener the process continues. Clients that have not closed within
    the broker's stop-timeout are cut off. A reload (SIGHUP) starts drained listeners again.
    """
    from pubsub.commands.api_client import Api

    body: dict[str, object] = {"keep_running": keep_running}
    if listener is not None:
        body["listener"] = listener
    answer = Api(destination(context)).post("/v1/drain", body)
    for one in answer["drained"]:
        click.echo(f"draining {one['protocol']} {one['endpoint']}")
    seconds = f"within {answer['stop_timeout']:g} s"
    click.echo(f"the broker stops {seconds}" if answer["stops"] else f"clients leave {seconds}")


COMMAND = drain
