"""``pubsub sub``: prints the messages of topics as they come."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from pubsub.commands.destination import Destination, destination, destination_options
from pubsub.commands.message_formats import NAMES, MessageFormatter, choose
from pubsub.commands.positive_number import PositiveNumber
from pubsub.commands.start_position import LATEST, PositionType, StartPosition
from pubsub.commands.topic_patterns import report_patterns
from pubsub.commands.whole_number import WholeNumber

if TYPE_CHECKING:
    from pubsub.client import Client
    from pubsub.commands.output import Output

TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class SubscribePlan:
    """The topics to read, the format of the output, and the end of the command."""

    topics: tuple[str, ...]
    start: StartPosition
    format: MessageFormatter
    count: int | None
    timeout: float | None
    quiet: bool
    last: int | None = None
    reader: str | None = None


def format_options(command: Any) -> Any:
    """Add --format and --verbose."""
    command = click.option(
        "--verbose", "-v", is_flag=True, help="Print the topic in front of each message."
    )(command)
    return click.option(
        "--format", "-F", "format_name", type=click.Choice(NAMES), default="text",
        help="text and hex: a line each; json: with what the wire shows; raw: nothing between "
        "messages.",
    )(command)  # fmt: skip


@click.command("sub")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@format_options
@click.option("--count", "-n", type=WholeNumber(1), metavar="N", help="End after N messages.")
@click.option(
    "--from", "start", type=PositionType(), default=LATEST,
    help="Where to begin: in the history, or with what is published from now on (latest).",
)  # fmt: skip
@click.option("--last", type=WholeNumber(1), metavar="N", help="Begin with the last N messages.")
@click.option(
    "--reader", metavar="NAME",
    help="Continue behind the messages that were printed with this name; --from and --last are for "
    "the first time.",
)  # fmt: skip
@click.option(
    "--timeout", "-W", type=PositiveNumber(), metavar="SECONDS",
    help="End after this time, with exit code 124.",
)  # fmt: skip
@click.option("--quiet", "-q", is_flag=True, help="Do not report lost connections and messages.")
@destination_options
@click.pass_context
def sub(
    context: click.Context, /, topics: tuple[str, ...], format_name: str, verbose: bool,
    count: int | None, start: StartPosition, last: int | None, reader: str | None,
    timeout: float | None, quiet: bool,
) -> int:  # fmt: skip
    """Print the messages of each TOPIC as they come.

    \b
    pubsub sub cafe/7
    pubsub sub cafe/7 bob --from earliest --format json
    pubsub sub cafe/7 --last 10
    pubsub sub 'sensors/*'
    """
    if last is not None and not start.latest:
        raise click.UsageError("give either --from or --last", context)
    formatter = choose(format_name, verbose, sys.stdout.isatty())
    subscription = SubscribePlan(topics, start, formatter, count, timeout, quiet, last, reader)
    if not quiet:
        report_patterns(topics, have_prefixes=True)
    from pubsub.commands.broker_client import run

    return run(subscribe(destination(context), subscription))


async def subscribe(where: Destination, wanted: SubscribePlan) -> int:
    """Print messages until one of the ends that ``wanted`` names, and return the exit code."""
    from pubsub.commands.broker_client import connected
    from pubsub.commands.notice_report import NoticeReport
    from pubsub.commands.output import Output, check_open

    check_open()
    report = NoticeReport(where, wanted.quiet)
    async with Output(sys.stdout.fileno()) as output, connected(where, report) as client:
        accepted = asyncio.Event()
        printing = asyncio.ensure_future(_print(client, where, output, wanted, accepted))
        ended = asyncio.ensure_future(output.ended.wait())
        tasks = (printing, ended)
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=wanted.timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            # Also after Ctrl-C: they end before the client does.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if printing in done:
            printing.result()
        output.hurried = not done
        if not (done or accepted.is_set()):
            click.echo(
                f"pubsub: {where.url}: the broker has not accepted the subscription in "
                f"{wanted.timeout:g} s; {where.hint()}",
                err=True,
            )
    # Only now is everything written, or has failed to be.
    if output.error is not None:
        raise output.error
    return 0 if done else TIMED_OUT


async def _print(
    client: Client,
    where: Destination,
    output: Output,
    wanted: SubscribePlan,
    accepted: asyncio.Event,
) -> None:
    """Print messages; ``accepted`` is set once the broker has accepted the subscription."""
    from pubsub.client.messages import BATCHES
    from pubsub.commands.broker_client import subscribe as begin
    from pubsub.commands.daemon_work import in_daemon_thread

    start = await in_daemon_thread(lambda: _first_offset(where, wanted))
    left = wanted.count
    async with begin(client, wanted.topics, start, reader=wanted.reader) as subscription:
        accepted.set()
        while (batch := await subscription.next_untaken()) is not None:
            assert isinstance(batch, BATCHES)
            messages = islice(subscription.taken.each_of(batch), left)
            shown = [wanted.format(message) for message in messages]
            await output.write(b"".join(shown))
            if wanted.reader is not None:
                await output.flush()
                if output.ended.is_set():
                    return
                await subscription.commit()
            if left is not None:
                left -= len(shown)
                if not left:
                    return


def _first_offset(where: Destination, wanted: SubscribePlan) -> int | None:
    """Return the offset at which the subscription begins, None for new messages only."""
    from pubsub.commands.broker_client import find_offset, start_of_last

    if wanted.last is not None:
        return start_of_last(where, wanted.topics, wanted.last)
    return find_offset(where, wanted.start)


COMMAND = sub
