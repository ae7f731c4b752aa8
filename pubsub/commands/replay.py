"""``pubsub replay``: publishes a range of the history again, or writes it to a file."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from pubsub.broker.quantity_text import quantity
from pubsub.commands.daemon_work import in_daemon_thread
from pubsub.commands.destination import Destination, destination, destination_options
from pubsub.commands.file_name import file_option
from pubsub.commands.history_reading import StoredMessage
from pubsub.commands.message_formats import NAMES, choose
from pubsub.commands.message_source import MOST_BYTES, MOST_MESSAGES
from pubsub.commands.positive_number import rate_option
from pubsub.commands.start_position import EARLIEST, LATEST, PositionType, StartPosition, offset_of
from pubsub.commands.topic_patterns import report_patterns
from pubsub.errors import ConfigurationError

if TYPE_CHECKING:
    from pubsub.client import Client

_ENDS = (signal.SIGTERM, signal.SIGHUP)
Advance = Callable[[int], None]
"""Called with the offset that was reached."""


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The messages of ``topics`` (all, if there are none) from ``start`` to before ``stop``.

    ``damaged`` gets the ranges of offsets (start, stop) that cannot be read.
    """

    start: int
    stop: int
    topics: tuple[str, ...]
    damaged: list[tuple[int, int]] = field(default_factory=list)


@click.command("replay")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--from", "start", type=PositionType(), default=EARLIEST,
    help="The first message (default: earliest).",
)  # fmt: skip
@click.option(
    "--to", "stop", type=PositionType(), default=LATEST,
    help="The end, exclusive (default: latest, the end when the command starts).",
)  # fmt: skip
@click.option("--into", metavar="TOPIC", help="Publish the messages on this topic.")
@file_option("--output", "-o", help="Write them to this new file; - for stdout.")
@click.option(
    "--format", "-F", "format_name", type=click.Choice(NAMES), default="json", show_default=True,
    help="How they are written.",
)  # fmt: skip
@rate_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print what was replayed, as JSON.")
@destination_options
@click.pass_context
def replay(
    context: click.Context, /, topics: tuple[str, ...], start: StartPosition, stop: StartPosition,
    into: str | None, output: str | None, format_name: str, rate: float | None, quiet: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Publish messages of the history again, or write them to a file.

    \b
    pubsub replay cafe/7 --from 1h --into cafe/8
    pubsub replay --from 2026-01-31T12:00:00Z --output messages.jsonl
    """
    if (into is None) == (output is None):
        raise click.UsageError("give either --into TOPIC or --output FILE", context)
    if into in topics or (into is not None and not topics):
        raise click.UsageError(
            "name the topics to replay, without the topic of --into, which would be read while "
            "it is written", context,
        )  # fmt: skip
    if as_json and output == "-":
        raise click.UsageError("--json and --output - exclude each other; name a file", context)
    if not quiet:
        report_patterns(topics, have_prefixes=False)
    where = destination(context)
    wanted = find_range(where, start, stop, topics)
    with _progress(wanted, quiet or output == "-") as advance:
        if output is not None:
            count = write(where, wanted, output, format_name, advance)
        else:
            from pubsub.commands.broker_client import run

            count = run(publish_again(where, wanted, str(into), rate, advance))
    if as_json:
        shown = {"start": wanted.start, "stop": wanted.stop, "messages": count}
        click.echo(json.dumps(shown | {"damaged": wanted.damaged}))
    elif not quiet and output != "-":
        messages = quantity(count, "message")
        click.echo(f"{messages} of offsets {wanted.start} to {wanted.stop}", err=True)


def find_range(
    where: Destination, start: StartPosition, stop: StartPosition, topics: tuple[str, ...]
) -> ReplayRange:
    """Return the range in offsets, as far as it exists. Raises RequestFailed."""
    from pubsub.commands.api_client import Api

    api, now = Api(where), time.time()
    bounds = api.bounds()
    first, end = int(bounds["first"]), int(bounds["next"])
    begin = max(offset_of(start, api.bounds, now), first)
    return ReplayRange(begin, max(min(offset_of(stop, api.bounds, now), end), begin), topics)


def _messages(where: Destination, wanted: ReplayRange, advance: Advance) -> Iterator[StoredMessage]:
    from pubsub.commands import history_reading as history
    from pubsub.commands.api_client import Api

    for item in history.read(Api(where), wanted.start, wanted.stop, wanted.topics):
        if isinstance(item, history.DamagedOffsets):
            click.echo(f"pubsub: {item}", err=True)
            wanted.damaged.append((item.start, item.stop))
            continue
        yield item
        advance(item.offset + 1)
    advance(wanted.stop)


def write(
    where: Destination, wanted: ReplayRange, output: str, format_name: str, advance: Advance
) -> int:
    """Write the messages to the new file ``output`` and return their number.

    A file that could not be written to its end does not stay. Raises ConfigurationError, OSError.
    """
    count, formatter = 0, choose(format_name, False, output == "-" and sys.stdout.isatty())
    with _new_file(output) as file:
        for message in _messages(where, wanted, advance):
            file.write(formatter(message))
            count += 1
    return count


@contextmanager
def _new_file(output: str) -> Iterator[BinaryIO]:
    if output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        # Messages can be secret, so only the owner can read the file.
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(
            f"{output}: the file exists and is not replaced; choose another name"
        ) from None
    try:
        with _unwinding(), open(descriptor, "wb") as file:
            yield file
    except BaseException as error:
        Path(output).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, output) from None
        raise


@contextmanager
def _unwinding() -> Iterator[None]:
    """Let the signals that end a process unwind it first, as Ctrl-C does."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    # nohup has SIGHUP ignored.
    wanted = [one for one in _ENDS if signal.getsignal(one) is signal.SIG_DFL]
    for number in wanted:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in wanted:
            signal.signal(number, signal.SIG_DFL)


@dataclass(slots=True)
class _Republished:
    """The number of messages that were published: all before ``stop``."""

    stop: int
    count: int = 0


async def publish_again(
    where: Destination, wanted: ReplayRange, into: str, rate: float | None, advance: Advance
) -> int:
    """Publish the payloads on the topic ``into``, confirmed, and return their number.

    Raises CommandError, which says where to go on. For a message that the protocol cannot carry,
    those before it are published.
    """
    from pubsub.client import ClientError, NotPublished, OutcomeUnknown
    from pubsub.commands.api_client import RequestFailed
    from pubsub.commands.broker_client import CommandError, connected
    from pubsub.commands.notice_report import NoticeReport
    from pubsub.commands.pace import paced

    done = _Republished(wanted.start)
    async with connected(where, NoticeReport(where)) as client:
        try:
            async for messages in paced(_groups(where, wanted, advance), rate):
                await _publish(client, into, messages, done)
        except (ClientError, RequestFailed) as error:
            if not done.count and not isinstance(error, OutcomeUnknown | NotPublished):
                # Nothing was published, and the error has its own advice.
                raise
            raise CommandError(
                f"{error}; the messages before offset {done.stop} are published, so go on with "
                f"--from {done.stop}"
            ) from None
    return done.count


async def _groups(
    where: Destination, wanted: ReplayRange, advance: Advance
) -> AsyncIterator[list[StoredMessage]]:
    messages = _messages(where, wanted, advance)
    # Reading blocks; the connection to the broker is kept meanwhile.
    while group := await in_daemon_thread(lambda: _group(messages)):
        yield group


def _group(messages: Iterator[StoredMessage]) -> list[StoredMessage]:
    """Return the next messages, as many as one request has."""
    group: list[StoredMessage] = []
    nbytes = 0
    for message in messages:
        group.append(message)
        nbytes += len(message.payload)
        if len(group) >= MOST_MESSAGES or nbytes >= MOST_BYTES:
            break
    return group


async def _publish(
    client: Client, into: str, messages: Sequence[StoredMessage], done: _Republished
) -> None:
    from pubsub.client import NotExpressible

    try:
        await client.publish_many(into, [one.payload for one in messages], confirm=True)
    except NotExpressible:
        # Not one of them was sent. Those before the first that is too large can be.
        await _publish_first(client, into, messages, done)
    else:
        _count(done, messages)


async def _publish_first(
    client: Client, into: str, messages: Sequence[StoredMessage], done: _Republished
) -> None:
    """Publish messages up to one that the protocol cannot carry."""
    from pubsub.client import NotExpressible
    from pubsub.commands.broker_client import CommandError

    for message in messages:
        try:
            await client.publish(into, message.payload, confirm=True)
        except NotExpressible as error:
            offset = message.offset
            raise CommandError(
                f"offset {offset}: {error}; go on with --from {offset + 1}"
            ) from None
        _count(done, [message])


def _count(done: _Republished, messages: Sequence[StoredMessage]) -> None:
    done.count += len(messages)
    done.stop = messages[-1].offset + 1


@contextmanager
def _progress(wanted: ReplayRange, quiet: bool) -> Iterator[Advance]:
    """Yield a function that shows the offset that was reached, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        yield lambda _reached: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("offsets", total=wanted.stop - wanted.start)
        yield lambda reached: progress.update(task, completed=reached - wanted.start)


COMMAND = replay
