"""``pubsub status``: the state of a broker on one page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from pubsub.broker.quantity_text import quantity
from pubsub.broker.visible_text import visible
from pubsub.commands.destination import destination, destination_options
from pubsub.commands.json_output import echo_json
from pubsub.commands.table_output import bytes_text, time_text

if TYPE_CHECKING:
    from pubsub.commands.api_client import Api

_CLEAR = "\x1b[H\x1b[2J"
# The reasons of refusals on the page, those of the newest refusals.
_REFUSALS = 5


@click.command("status")
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@destination_options
@click.pass_context
def status(context: click.Context, watch: bool, as_json: bool) -> int:
    """Show the state of a broker: problems, traffic, memory, the history, refusals.

    Exit code 1 if the broker is not ready to serve.
    """
    from pubsub.commands.api_client import Api

    api = Api(destination(context))
    ready = False
    for found in _readings(api, watch):
        ready = found["ready"]
        found["refusals"] = list(api.items("/v1/refusals", {}))
        if as_json:
            echo_json(found)
            continue
        clear = _CLEAR if watch and sys.stdout.isatty() else ""
        click.echo(clear + "\n".join(visible(line) for line in page(found)))
    return 0 if ready else 1


def _readings(api: Api, watch: bool) -> Iterator[dict[str, Any]]:
    if not watch:
        yield api.get("/v1/status")
        return
    from pubsub.commands.api_client import RequestFailed

    for line in api.lines("/v1/status", {"follow": 1, "format": "jsonl"}):
        if "end" in line:
            reason = visible(str(line["end"].get("reason")))
            raise RequestFailed(
                f"the broker has ended the status: {reason}; repeat the command to continue"
            )
        if "version" in line:
            yield line


def page(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    stats = found["stats"]
    state = "ready" if found["ready"] else "NOT READY"
    up = timedelta(seconds=int(stats["uptime"]))
    # Brokers of earlier versions have no name.
    name = f" {found['name']}" if "name" in found else ""
    yield (
        f"pubsub {found['version']} ({found['kernel']}){name}: {state}, up {up} since "
        + time_text(found["started"])
    )
    for one in found["attention"]:
        yield f"{one['level'].upper()}: {one['what']}; {one['do']}"
    yield ""
    yield from _protocols(stats["protocols"])
    yield ""
    yield from _facts(stats)
    if found["refusals"]:
        yield ""
        yield from _refusals(found["refusals"])


def _protocols(protocols: dict[str, Any]) -> Iterator[str]:
    yield f"{'protocol':<10}{'connections':>12}{'in':>14}{'out':>14}{'dropped':>10}{'refused':>10}"
    for name, one in protocols.items():
        yield (
            f"{name:<10} {one['connections']:>11,} {one['messages_in']:>13,} "
            f"{one['messages_out']:>13,} {one['dropped']:>9,} {one['refused']:>9,}"
        )


def _facts(stats: dict[str, Any]) -> Iterator[str]:
    memory, store, slow, latency = (stats[one] for one in ("memory", "store", "slow", "latency"))
    limit = f" of {bytes_text(memory['limit'])}" if memory["limit"] else ""
    yield f"topics    {stats['topics']:,}, {quantity(stats['subscriptions'], 'subscription', ',')}"
    yield (
        f"slow      {slow['paused']:,} paused, {slow['catching_up']:,} catching up, "
        f"{quantity(slow['behind'], 'message', ',')} behind, "
        f"{bytes_text(slow['queued_bytes'])} queued"
    )
    yield f"memory    {bytes_text(memory['used'])}{limit}"
    yield (
        f"history   {quantity(store['next_offset'] - store['first_offset'], 'message', ',')}, "
        f"{bytes_text(store.get('bytes', 0))}, on disk up to {store['committed']:,}"
    )
    if "backplane" in stats:
        yield from _backplane(stats["backplane"])
    for name in ("flush", "commit"):
        times = latency[name]
        yield f"{name:<9} {times['p50'] * 1e3:.2f} ms, 99 % within {times['p99'] * 1e3:.2f} ms"


def _backplane(backplane: dict[str, Any]) -> Iterator[str]:
    state = "connected" if backplane["connected"] else "away"
    yield (
        f"backplane {state}, {quantity(backplane['messages_out'], 'message', ',')} sent, "
        f"{backplane['messages_in']:,} received, {quantity(backplane['topics'], 'topic', ',')}"
    )
    if "history_connected" in backplane:
        is_shared = backplane["history_connected"] and not backplane["history_trouble"]
        yield (
            f"          history {'' if is_shared else 'not '}shared, "
            f"{quantity(backplane['history_unreplicated'], 'message', ',')} not shared yet, "
            f"{quantity(backplane['history_lag'], 'record', ',')} of others not read"
        )


def _refusals(rows: list[dict[str, Any]]) -> Iterator[str]:
    newest = sorted(rows, key=lambda row: row["last_timestamp"], reverse=True)[:_REFUSALS]
    yield f"{'refused':<10}{'reason':<22}{'count':>10}  {'last':<20} last client"
    for row in newest:
        yield (
            f"{row['protocol']:<10}{row['reason']:<22}{row['count']:>10,}  "
            f"{time_text(row['last_timestamp']):<20} {row['last_client'] or ''}"
        ).rstrip()


COMMAND = status
