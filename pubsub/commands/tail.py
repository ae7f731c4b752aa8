"""``pubsub tail``: prints the last messages of topics, and those that follow."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from pubsub.commands.destination import Destination, destination, destination_options
from pubsub.commands.message_formats import MessageFormatter, choose
from pubsub.commands.start_position import StartPosition
from pubsub.commands.sub import SubscribePlan, format_options, subscribe
from pubsub.commands.topic_patterns import report_patterns
from pubsub.commands.whole_number import WholeNumber

if TYPE_CHECKING:
    from pubsub.commands.history_reading import DamagedOffsets, StoredMessage

# Up to so many messages and bytes it is quicker to read some more than to find the first one
# exactly. The bytes bound the memory of the command.
_KEPT, _KEPT_BYTES = 1000, 32 * 1024 * 1024


@click.command("tail")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@format_options
@click.option(
    "--lines", "-n", type=WholeNumber(0), default=10, show_default=True, metavar="N",
    help="Print the last N messages.",
)  # fmt: skip
@click.option("--follow", "-f", is_flag=True, help="Continue with new messages.")
@destination_options
@click.pass_context
def tail(
    context: click.Context, /, topics: tuple[str, ...], format_name: str, verbose: bool,
    lines: int, follow: bool,
) -> int | None:  # fmt: skip
    """Print the last messages of each TOPIC, or of all, from the broker's history.

    \b
    pubsub tail -n 3
    pubsub tail -f cafe/7
    """
    if follow and not topics:
        raise click.UsageError("--follow needs a topic", context)
    where = destination(context)
    formatter = choose(format_name, verbose, sys.stdout.isatty())
    report_patterns(topics, have_prefixes=False)
    stop = print_last(where, topics, lines, formatter)
    if not follow:
        return None
    from pubsub.commands.broker_client import run

    wanted = SubscribePlan(topics, StartPosition(offset=stop), formatter, None, None, quiet=False)
    return run(subscribe(where, wanted))


def print_last(
    where: Destination, topics: tuple[str, ...], number: int, formatter: MessageFormatter
) -> int:
    """Print the last ``number`` messages and return the offset at which following begins."""
    from pubsub.commands import history_reading as history
    from pubsub.commands.api_client import Api

    api = Api(where)
    bounds = api.bounds()
    stop, start = int(bounds["next"]), int(bounds["first"])

    def count(begin: int, end: int) -> int:
        return history.totals(api, begin, end, topics).messages

    are_kept = number <= _KEPT
    if are_kept:
        start = history.start_of_last(number, start, stop, count, _KEPT)
        are_kept = history.totals(api, start, stop, topics).nbytes <= _KEPT_BYTES
    if not are_kept:
        start = history.start_of_last(number, start, stop, count, 0)
    messages = _intact(history.read(api, start, stop, topics))
    for message in deque(messages, number) if are_kept else messages:
        sys.stdout.buffer.write(formatter(message))
    sys.stdout.buffer.flush()
    return stop


def _intact(items: Iterable[StoredMessage | DamagedOffsets]) -> Iterator[StoredMessage]:
    """Yield the messages; report damage."""
    for item in items:
        if isinstance(item, tuple):
            yield item
        else:
            click.echo(f"pubsub: {item}", err=True)


COMMAND = tail
