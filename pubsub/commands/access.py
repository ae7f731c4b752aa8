"""``pubsub access``: the decisions of the access rules of a configuration file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pubsub.broker.access_rules.access_table import ACTIONS
from pubsub.broker.credentials.identity import ANONYMOUS, PROOFS, TOKEN, Identity
from pubsub.commands.file_name import file_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pubsub.broker.access_rules.access_explanation import AccessRequest, Explanation


@click.group("access", no_args_is_help=False)
def access() -> None:
    """Explain the decisions of access rules."""


@dataclass(frozen=True, slots=True)
class _DescribedClient:
    """The client that the command line describes."""

    identity: str | None
    proof: str | None
    group: tuple[str, ...]
    network: str | None
    issuer: str | None

    def as_identity(self) -> Identity:
        """Return its identity; raises UsageError."""
        named = self.identity is not None
        proof = self.proof or (TOKEN if named else ANONYMOUS)
        if named is (proof == ANONYMOUS):
            raise click.UsageError("give --identity, or --proof anonymous, or neither")
        host = self.network or ""
        if host not in ("", "unix"):
            from ipaddress import ip_address

            try:
                ip_address(host)
            except ValueError:
                message = f"--network: expected an address or unix, not {host!r}"
                raise click.UsageError(message) from None
        if self.issuer is not None and proof != TOKEN:
            raise click.UsageError("--issuer is for --proof token")
        return Identity(self.identity or "", proof, frozenset(self.group), host, self.issuer or "")


@access.command()
@file_option("--config", help="The broker's configuration file.", required=True)
@click.option("--identity", help="The name of the client; without it the client is anonymous.")
@click.option("--proof", type=click.Choice(PROOFS), help="What proves the name; default token.")
@click.option("--issuer", metavar="ID", help="The table [keys.ID] that has verified the token.")
@click.option("--group", multiple=True, help="A group that the proof names; may be repeated.")
@click.option("--network", metavar="ADDRESS", help="The client's address, or unix.")
@click.option("--listener", metavar="PROTOCOL", help="Only listeners of this protocol.")
@click.option("--topic", default="", help="The topic, unless the action is about none.")
@click.option("--action", required=True, type=click.Choice(ACTIONS), help="What is requested.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    config: str,
    listener: str | None,
    topic: str,
    action: str,
    as_json: bool,
    **client: object,
) -> None:
    """Show which access rule decides about a request, and why earlier rules do not match.

    The rules are those of the configuration file, with those that stand for the settings
    allow-publish, allow-subscribe and grant of each listener. No broker is needed.
    """
    from pubsub.broker.access_rules.access_explanation import TOPICLESS, AccessRequest

    if bool(topic) is (action in TOPICLESS):
        wanted = "takes no --topic" if topic else "needs --topic"
        raise click.UsageError(f"--action {action} {wanted}")
    identity = _DescribedClient(**client).as_identity()  # type: ignore[arg-type]
    request = AccessRequest(identity, action, topic)
    found = _explain_all(config, listener, request)
    if as_json:
        click.echo(json.dumps([_as_json(name, one) for name, one in found.items()], indent=2))
    else:
        _print(request, found)


def _explain_all(path: str, listener: str | None, request: AccessRequest) -> dict[str, Explanation]:
    """Return the explanation for each listener; raises ConfigurationError."""
    from pubsub.broker.access_rules.access_explanation import explain
    from pubsub.plugin import ADMIN, installed_protocols
    from pubsub.server.access_settings import listeners_of, read_access
    from pubsub.server.configuration import check_document
    from pubsub.server.file_tables import read_file
    from pubsub.server.http_listener import HTTP
    from pubsub.server.secret_settings import issuer_actions

    document = read_file(path)
    installed = installed_protocols()
    check_document(installed, document)
    protocols = tuple(installed)
    issuers = issuer_actions(document.get("keys", {}))
    issuer = request.identity.issuer
    if issuer and issuer not in issuers:
        raise click.UsageError(f"--issuer {issuer}: {path} has no [keys.{issuer}]")
    table = read_access(document, (*protocols, ADMIN.name), issuers)
    wanted = ADMIN.name if listener == HTTP else listener
    found = {
        name: explain(table, name.partition(" ")[0], settings, request)
        for name, settings in listeners_of(document, protocols).items()
        if wanted in (None, name.partition(" ")[0])
    }
    if not found:
        raise click.UsageError(f"--listener {listener}: {path} has no such listener")
    return found


def _print(request: AccessRequest, found: Mapping[str, Explanation]) -> None:
    """Print each explanation once, with the listeners that it is for."""
    names: dict[str, list[str]] = {}
    for name, one in found.items():
        names.setdefault("\n".join(_lines(request, one)), []).append(name)
    click.echo("\n\n".join(f"{', '.join(some)}:\n{text}" for text, some in names.items()))


def _lines(request: AccessRequest, one: Explanation) -> Sequence[str]:
    verdict = "allowed" if one.allowed else "denied"
    topic = f" {request.topic!r}" if request.topic else ""
    lines = [f"  {request.action}{topic} by {request.identity}: {verdict} ({one.reason})"]
    lines += [f"    {step.part:>22}  {step.rule.origin}: {step.rule}" for step in one.steps]
    return [*lines, *(f"  {note}" for note in one.notes)]


def _as_json(name: str, one: Explanation) -> dict[str, object]:
    return {
        "listener": name,
        "allowed": one.allowed,
        "reason": one.reason,
        "rules": [
            {"origin": step.rule.origin, "rule": str(step.rule), "part": step.part}
            for step in one.steps
        ],
        "notes": list(one.notes),
    }


COMMAND = access
