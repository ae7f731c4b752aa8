"""``pubsub context``: names for brokers, and the one that commands use."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from pubsub.commands.contexts import Context, changed, check_name, load
from pubsub.commands.destination import complete_context, split_users
from pubsub.commands.file_name import file_option
from pubsub.errors import ConfigurationError
from pubsub.wire.url_list import split_urls


@click.group("context", no_args_is_help=False)
def context() -> None:
    """Name brokers, and choose the one that commands connect to."""


@context.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--api", metavar="URL", help="The broker's HTTP API, for its history.")
@click.option("--client-id", metavar="ID", help="The name or id of this client on the wire.")
@file_option("--token-file", help="File with the token; read when it is needed.")
@click.option("--user", metavar="NAME", help="The user, where the wire has passwords.")
@file_option("--password-file", help="File with the user's password.")
@file_option("--tls-ca", help="Certificates of the authorities to trust, in PEM.")
@file_option("--tls-cert", help="The client's certificate, in PEM.")
@file_option("--tls-key", help="The key of the certificate, in PEM.")
@click.option("--replace", is_flag=True, help="Replace a context of this name.")
def add(
    name: str, url: str, api: str | None, client_id: str | None, user: str | None, replace: bool,
    **files: str | None,
) -> None:  # fmt: skip
    """Add the broker at URL as NAME. The first context is used at once.

    URL may be several with commas between them, of brokers that stand for one another.
    """
    # Imported here, as it brings along the client library.
    from pubsub.client.client_url import parse_urls

    check_name(name)
    url, own = split_users(url)
    parse_urls(url)
    if api and not all(one.startswith(("http://", "https://")) for one in split_urls(api)):
        raise ConfigurationError("--api: expected a URL with http:// or https://")
    if api and split_users(api)[1] is not None:
        raise ConfigurationError("the URL of the API has no user; clients give a token there")
    paths = {option: _absolute(path) for option, path in files.items()}
    with changed(os.environ) as contexts:
        if name in contexts.named and not replace:
            raise ConfigurationError(f"the context {name!r} exists; replace it with --replace")
        contexts.named[name] = Context(url, api, client_id, user=own or user, **paths)
        if contexts.current is None:
            contexts.current = name
    click.echo(f"{name}: {url}" + (" (in use)" if contexts.current == name else ""))


def _absolute(path: str | None) -> str | None:
    """Return a path that is the same in every directory. Raises ConfigurationError, OSError."""
    if path is None:
        return None
    found = Path(path).expanduser().absolute()
    with found.open("rb"):
        return str(found)


@context.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each.")
def list_contexts(as_json: bool) -> None:
    """List the contexts; * marks the one in use."""
    contexts = load(os.environ)
    if as_json:
        for name, one in sorted(contexts.named.items()):
            shown = {"name": name, "current": name == contexts.current, **asdict(one)}
            click.echo(json.dumps(shown))
        return
    if not contexts.named:
        click.echo("there is no context; make one with pubsub context add NAME URL", err=True)
    width = max(map(len, contexts.named), default=0)
    for name, one in sorted(contexts.named.items()):
        mark = "*" if name == contexts.current else " "
        click.echo(f"{mark} {name:{width}}  {one.url}")


@context.command("use")
@click.argument("name", shell_complete=complete_context)
def use(name: str) -> None:
    """Have commands connect to the context NAME."""
    with changed(os.environ) as contexts:
        one = contexts.find(name)
        contexts.current = name
    click.echo(f"{name}: {one.url} (in use)")


@context.command("remove")
@click.argument("name", shell_complete=complete_context)
def remove(name: str) -> None:
    """Remove the context NAME. Its token file stays."""
    with changed(os.environ) as contexts:
        contexts.find(name)
        del contexts.named[name]
        if contexts.current == name:
            contexts.current = None


@context.command("show")
@click.argument("name", required=False, shell_complete=complete_context)
def show(name: str | None) -> None:
    """Show the context NAME, or the one in use, as JSON."""
    contexts = load(os.environ)
    if name is None and contexts.current is None:
        raise ConfigurationError("no context is in use; choose one with pubsub context use NAME")
    chosen = name or contexts.current or ""
    click.echo(json.dumps({"name": chosen, **asdict(contexts.find(chosen))}, indent=2))


COMMAND = context
