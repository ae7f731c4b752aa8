"""``pubsub token``: makes and shows the tokens of the protocol fast."""

from __future__ import annotations

import json
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt.warnings import InsecureKeyLengthWarning

from pubsub.broker.access_rules.access_table import ACTIONS
from pubsub.broker.credentials.master_secrets import ALGORITHMS, HMACS
from pubsub.broker.credentials.tokens import ALL
from pubsub.commands.file_name import file_option
from pubsub.commands.queue_key import given_queue_key, queue_key_options
from pubsub.small_file import read_bounded

MAX_TOKEN = 255
# Claims of the other options.
_OPTIONS = {
    "sub": "--sub", "queue_key": "--queue-key", "permissions": "--permission", "exp": "--expires",
}  # fmt: skip
# Claims with times, which are numbers.
_TIMES = ("nbf", "iat")
# Permissions that fast, and topics that are closed by a key, grant with their queue key only.
_WITH_KEY = {"publish", "subscribe", "create", "rotate", ALL}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group("token", no_args_is_help=False)
def token() -> None:
    """Make and inspect tokens."""


class _Duration(click.ParamType[int]):
    """The seconds in a number with a unit of s, m, h or d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        unit = _UNITS.get(value[-1:], 0)
        if not unit or not value[:-1].isdecimal():
            self.fail(f"expected a duration such as 90s or 12h, not {value!r}", param, ctx)
        return int(value[:-1]) * unit


@dataclass(frozen=True, slots=True)
class _Claims:
    """The claims of a token to be made, as the command line has them."""

    sub: str | None
    queue_key: str | None
    queue_key_file: str | None
    permission: tuple[str, ...]
    expires: int | None
    claim: tuple[str, ...]

    def at(self, now: float) -> dict[str, Any]:
        """Return the claims. Raises ValueError, OSError."""
        claims: dict[str, Any] = {}
        if self.sub:
            claims["sub"] = self.sub
        key = given_queue_key(self.queue_key, self.queue_key_file, required=False)
        if key is not None:
            if not key:
                raise ValueError("the queue key is empty, and that of a topic is not")
            claims["queue_key"] = key
        permissions = self.permission
        claims["permissions"] = permissions[0] if len(permissions) == 1 else list(permissions)
        if self.expires is not None:
            claims["exp"] = int(now) + self.expires
        for claim in self.claim:
            name, value = _further_claim(claim)
            if name in claims:
                raise ValueError(f"--claim: the claim {name} is given twice; a token has it once")
            claims[name] = value
        return claims


def _further_claim(claim: str) -> tuple[str, str | int]:
    """Return the name and the value of a ``--claim``. Raises ValueError."""
    name, equals, value = claim.partition("=")
    if not equals:
        raise ValueError(f"--claim: expected NAME=VALUE, not {claim!r}")
    if name in _OPTIONS:
        raise ValueError(f"--claim: the claim {name} has an option of its own, {_OPTIONS[name]}")
    if name not in _TIMES:
        return name, value
    if not value.isascii() or not value.isdecimal():
        raise ValueError(f"--claim: {name}: expected seconds since the Unix epoch, not {value!r}")
    return name, int(value)


def _complete_permission(
    _context: click.Context, _option: click.Parameter, incomplete: str
) -> list[str]:
    # The shell would replace * by the names of files.
    return [one for one in ACTIONS if one.startswith(incomplete)]


@token.command("make")
@file_option(
    "--secret-file",
    help="File with the master secret, or with a private key in PEM for EdDSA.",
    required=True,
)
@click.option("--algorithm", type=click.Choice(list(ALGORITHMS)), default="HS256")
@click.option("--kid", help="Id of the secret in the broker's [keys] table.")
@click.option("--sub", help="Subject: the client that the token is for.")
@queue_key_options("Queue key of the client's topics, which fast needs")
@click.option(
    "--permission", multiple=True, type=click.Choice([*ACTIONS, ALL]),
    shell_complete=_complete_permission,
    help="A permission, * for all; may be repeated (default: none).",
)  # fmt: skip
@click.option(
    "--expires", type=_Duration(), help="Validity, such as 90s or 12h (default: no expiry)."
)
@click.option("--claim", multiple=True, metavar="NAME=VALUE", help="A further claim; repeatable.")
def make(secret_file: str, algorithm: str, kid: str | None, **claims: Any) -> None:
    """Make a token and print it."""
    given = _Claims(**claims).at(time.time())
    made = _encode(secret_file, algorithm, kid, given)
    lack = _lack(set(claims["permission"]), "queue_key" in given)
    if lack:
        click.echo(f"pubsub: {lack}", err=True)
    if len(made) > MAX_TOKEN:
        click.echo(f"pubsub: {size_advice(made)}", err=True)
    click.echo(made)


def _lack(permissions: set[str], has_key: bool) -> str:
    """Return a note on what a token lacks; empty if it may well be of use."""
    if not permissions:
        return (
            "the token has no permission: its client can neither publish nor read over fast, nor "
            "over HTTP where there are access rules; --permission adds one"
        )
    # With any other permission it is for the HTTP API, where most topics need no key.
    if not has_key and permissions <= _WITH_KEY:
        return (
            "the token has no queue key: over HTTP it needs one only for topics that are closed by "
            "a key, but over fast always; --queue-key adds one"
        )
    return ""


def _encode(secret_file: str, algorithm: str, kid: str | None, claims: dict[str, Any]) -> str:
    headers = {"kid": kid} if kid else None
    try:
        json.dumps([claims, kid], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # In a token it would be an escape, and no broker has such a key or subject.
        raise ValueError("a claim of the token is not text in UTF-8") from None
    key: Any = read_bounded(secret_file)
    if not key.removesuffix(b"\n"):
        raise ValueError(f"{secret_file} is empty; pubsub secret FILE writes a secret")
    try:
        key = key.removesuffix(b"\n") if algorithm in HMACS else load_pem_private_key(key, None)
        with warnings.catch_warnings():
            # The broker refuses weak secrets, unless --allow-weak-secret allows them.
            warnings.simplefilter("ignore", InsecureKeyLengthWarning)
            return jwt.encode(claims, key, algorithm, headers)
    except (jwt.PyJWTError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{secret_file}: {error}") from None


def size_advice(token: str) -> str:
    """Return a hint for shortening a token that does not fit a packet."""
    header, payload, signature = map(len, token.split("."))
    claims = jwt.decode(token, options={"verify_signature": False})
    longest = sorted(claims, key=lambda name: len(json.dumps(claims[name])), reverse=True)
    return (
        f"the token has {len(token)} bytes, but fast accepts at most {MAX_TOKEN} (header {header}, "
        f"claims {payload}, signature {signature}); shorten {' or '.join(longest[:2])}"
        + (", or omit --kid" if header > 40 else "")
        + (", or use HS256" if signature > 43 else "")
    )


@token.command("inspect")
@click.argument("token")
def inspect(token: str) -> None:
    """Show the header and claims of TOKEN without verifying it.

    With - the token is read from standard input.
    """
    token = (sys.stdin.read() if token == "-" else token).strip()
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError as error:
        raise ValueError(
            f"not a token: {error}; give its text, or - to read it from standard input"
        ) from None
    shown = {
        "header": header,
        "claims": claims,
        "bytes": len(token),
        "fits": len(token) <= MAX_TOKEN,
    }
    for name in ("nbf", "exp"):
        if isinstance(claims.get(name), int | float):
            # A time that the calendar does not have is shown among the claims only.
            with suppress(OverflowError, ValueError, OSError):
                shown[name] = datetime.fromtimestamp(claims[name], UTC).isoformat()
    click.echo(json.dumps(shown, indent=2))
    if len(token) > MAX_TOKEN:
        click.echo(f"pubsub: {size_advice(token)}", err=True)


COMMAND = token
