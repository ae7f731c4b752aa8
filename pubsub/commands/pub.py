"""``pubsub pub``: publishes a message, a file, or the lines of standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pubsub.commands.destination import Destination, destination, destination_options
from pubsub.commands.file_name import file_option
from pubsub.commands.positive_number import rate_option
from pubsub.commands.waiting_input import read_all
from pubsub.commands.whole_number import WholeNumber
from pubsub.errors import ConfigurationError

if TYPE_CHECKING:
    from pubsub.client import Client, Level

_STDIN = 0


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """The messages to publish, and the way. ``rate`` is in messages a second, None for no limit."""

    topic: str
    payload: bytes | None
    count: int | None
    rate: float | None
    confirm: bool
    headers: Mapping[str, bytes]

    def payloads(self) -> AsyncIterator[list[bytes]]:
        """Return the payloads; those of lines as they come."""
        from pubsub.commands.message_source import lines, repeated

        if self.payload is None:
            return lines(_STDIN, self.count)
        return repeated(self.payload, self.count or 1)


class _Header(click.ParamType[tuple[str, bytes]]):
    """A name and a value in NAME=VALUE."""

    name = "header"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, bytes]:
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"expected NAME=VALUE, not {value!r}", param, ctx)
        return name, os.fsencode(text)


@click.command("pub")
@click.argument("topic")
@click.argument("message", required=False)
@file_option("--file", "-f", help="Publish the content of FILE as one message.")
@click.option(
    "--count", "-n", type=WholeNumber(1), metavar="N",
    help="Publish the message N times, or N lines at the most.",
)  # fmt: skip
@rate_option
@click.option("--confirm", "-c", is_flag=True, help="Wait until the broker has confirmed them.")
@click.option(
    "--header", "-H", type=_Header(), multiple=True, metavar="NAME=VALUE",
    help="Add a header; may be repeated, with another name each time.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print what was published, as JSON.")
@destination_options
@click.pass_context
def pub(
    context: click.Context, /, topic: str, message: str | None, file: str | None,
    count: int | None, rate: float | None, confirm: bool,
    header: tuple[tuple[str, bytes], ...], as_json: bool,
) -> int:  # fmt: skip
    """Publish MESSAGE on TOPIC; without one, each line of standard input as a message.

    \b
    pubsub pub cafe/7 hello
    tail -f log.txt | pubsub pub cafe/7
    """
    if message is not None and file is not None:
        raise click.UsageError("MESSAGE and --file exclude each other", context)
    payload = None if message is None else os.fsencode(message)
    if file is not None:
        payload = read_all(_STDIN) if file == "-" else Path(file).read_bytes()
    headers = _headers(context, header)
    if payload is None and sys.stdin.isatty():
        click.echo("each line is a message; end with Ctrl-D", err=True)
    publication = PublishPlan(topic, payload, count, rate, confirm, headers)
    from pubsub.commands.broker_client import run

    published, failed, level = run(publish(destination(context), publication))
    if as_json:
        shown = {"topic": topic, "published": published, "failed": failed, "confirmed": level}
        click.echo(json.dumps(shown))
    return 1 if failed else 0


def _headers(context: click.Context, given: Iterable[tuple[str, bytes]]) -> Mapping[str, bytes]:
    """Return the headers by name; raises UsageError for a name that is repeated."""
    found: dict[str, bytes] = {}
    for name, value in given:
        if name in found:
            raise click.UsageError(
                f"the header {name!r} is given twice, and a message has one header of a name; give "
                "each name once", context,
            )  # fmt: skip
        found[name] = value
    return found


async def publish(where: Destination, publication: PublishPlan) -> tuple[int, int, str | None]:
    """Publish, and return how many messages were published, how many were refused or may not have
    been published, and the lowest level that was confirmed.

    Raises CommandError for a line that the protocol cannot carry; those before it are published.
    """
    from pubsub.client import NotExpressible, OutcomeUnknown
    from pubsub.commands.broker_client import CommandError, connected
    from pubsub.commands.notice_report import NoticeReport
    from pubsub.commands.pace import paced

    given, levels, report = 0, set(), NoticeReport(where, quiet=True)
    async with connected(where, report) as client:
        try:
            async for payloads in paced(publication.payloads(), publication.rate):
                given += len(payloads)
                try:
                    level = await _publish(client, publication, payloads)
                except OutcomeUnknown as error:
                    # The client makes another connection for the next messages.
                    report.failed += len(payloads)
                    click.echo(f"pubsub: {error}", err=True)
                    continue
                except NotExpressible:
                    if publication.payload is not None:
                        raise
                    await _publish_lines(client, publication, payloads, given)
                    continue
                if level is not None:
                    levels.add(level)
        except (CommandError, ConfigurationError, OSError):
            # The input ends here. A client that is left by an error drops what it has not sent.
            await client.flush()
            raise
    lowest = min(levels).name.lower() if levels else None
    return given - report.failed, report.failed, lowest


async def _publish(
    client: Client, publication: PublishPlan, payloads: Sequence[bytes]
) -> Level | None:
    return await client.publish_many(
        publication.topic,
        payloads,
        confirm=publication.confirm,
        headers=publication.headers or None,
    )


async def _publish_lines(
    client: Client, publication: PublishPlan, payloads: Sequence[bytes], given: int
) -> None:
    """Publish lines up to one that the protocol cannot carry; ``given`` is the number of the last.

    Not one of them was sent, and those before it can be.
    """
    from pubsub.client import NotExpressible
    from pubsub.commands.broker_client import CommandError

    for number, payload in enumerate(payloads, given - len(payloads) + 1):
        try:
            await _publish(client, publication, [payload])
        except NotExpressible as error:
            raise CommandError(
                f"line {number}: {error}; the lines before it are published"
            ) from None


COMMAND = pub
