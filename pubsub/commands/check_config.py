"""``pubsub check-config``: checks a file, and shows the changes of a reload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pubsub.commands.destination import destination, destination_options
from pubsub.commands.file_name import FILE_NAME, file_option

if TYPE_CHECKING:
    from pubsub.server.configuration import Config
    from pubsub.server.configuration_changes import Described

_RESTART = 3


@click.command("check-config")
@click.argument("file", metavar="FILE", type=FILE_NAME)
@file_option("--against", help="Compare with this file, as if a broker ran with it.")
@destination_options
@click.pass_context
def check_config(context: click.Context, file: str, against: str | None) -> int:
    """Check a configuration file as the broker does, and show the changes of a reload.

    With --against, the file is compared with another one; with --url or --context, with the
    configuration of a running broker; else with nothing, also if PUBSUB_URL is set. Secrets,
    certificates and other files that it names are read too, and warnings that the broker would log
    at its start are printed.

    Exit codes: 0 the file is valid, and a reload applies all of it; 3 it is valid, and a restart is
    needed for some of it; 1 it is not valid.
    """
    from pubsub.server.configuration_changes import compare, describe, hidden_changes

    url = destination_url(context)
    if against is not None and url:
        raise click.UsageError("--against and --url exclude each other")
    new, hidden = _read_with_warnings(file), []
    if against is not None:
        before = _read(against)
        old, hidden = describe(before), hidden_changes(before, new)
    elif url:
        old = _running(context)
    else:
        return 0
    changes = compare(old, describe(new))
    lines = changes.lines() + [
        f"{name}: the credentials change (needs a restart)" for name in hidden
    ]
    for line in lines or ["a reload changes nothing"]:
        click.echo(line)
    return _RESTART if changes.need_restart or hidden else 0


def destination_url(context: click.Context) -> bool:
    """Return whether the command line names a broker; the environment does not count here."""
    given = context.meta["pubsub.commands.destination"]
    return given.get("url") is not None or given.get("context") is not None


def _read_with_warnings(path: str) -> Config:
    """Read the file, and report on it."""
    from twisted.logger import (
        ILogObserver,
        LogEvent,
        LogLevel,
        formatEvent,
        globalLogPublisher,
    )
    from zope.interface import provider

    warnings: list[str] = []

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        if event["log_level"] is LogLevel.warn:
            warnings.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    try:
        config = _read(path)
    finally:
        globalLogPublisher.removeObserver(observe)
    click.echo(f"{path}: valid")
    for warning in warnings:
        click.echo(f"warning: {warning}")
    return config


def _read(path: str) -> Config:
    from pubsub.server.configuration_check import read_and_check

    return read_and_check(path)


def _running(context: click.Context) -> Described:
    from pubsub.commands.api_client import Api

    described: Described = Api(destination(context)).get("/v1/configuration")
    return described


COMMAND = check_config
