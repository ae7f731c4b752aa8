"""``pubsub token``: makes and shows the tokens of the protocol fast."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pubsub.broker.master_secrets import ALGORITHMS, HMACS

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

MAX_TOKEN = 255
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add(commands: Commands) -> None:
    """Add the subcommand and its two actions."""
    token = commands.add_parser("token", help="make and inspect tokens")
    actions = token.add_subparsers(metavar="ACTION", required=True)
    _add_make(actions)
    inspect = actions.add_parser(
        "inspect", help="show the header and claims of a token without verifying it"
    )
    inspect.add_argument("token", help="the token, or - to read it from standard input")
    inspect.set_defaults(run=_inspect)


def _add_make(actions: Commands) -> None:
    make = actions.add_parser("make", help="make a token and print it")
    make.add_argument(
        "--secret-file",
        required=True,
        help="file with the master secret, or with a private key in PEM for EdDSA",
    )
    make.add_argument("--algorithm", choices=ALGORITHMS, default="HS256")
    make.add_argument("--kid", help="id of the secret in the broker's [keys] table")
    make.add_argument("--sub", help="subject: the client that the token is for")
    key = make.add_mutually_exclusive_group(required=True)
    key.add_argument(
        "--queue-key",
        help="queue key of the client's topics; other users can read it in the process list",
    )
    key.add_argument("--queue-key-file", help="file with the queue key")
    make.add_argument(
        "--permission",
        action="append",
        default=[],
        help="publish, subscribe, rotate, create, history, admin or * (all); may be repeated",
    )
    make.add_argument(
        "--expires", type=_seconds, help="validity, such as 90s or 12h (default: no expiry)"
    )
    make.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further claim; may be repeated",
    )
    make.set_defaults(run=_make)


def _seconds(text: str) -> int:
    """Return the seconds in a number with a unit of s, m, h or d."""
    unit = _UNITS.get(text[-1:], 0)
    if not unit or not text[:-1].isdecimal():
        raise argparse.ArgumentTypeError(f"expected a duration such as 90s or 12h, not {text!r}")
    return int(text[:-1]) * unit


def _claims(options: argparse.Namespace, now: float) -> dict[str, Any]:
    claims: dict[str, Any] = {}
    if options.sub:
        claims["sub"] = options.sub
    if options.queue_key_file is None:
        claims["queue_key"] = options.queue_key
    else:
        claims["queue_key"] = Path(options.queue_key_file).read_text().removesuffix("\n")
    permissions = options.permission
    claims["permissions"] = permissions[0] if len(permissions) == 1 else permissions
    if options.expires is not None:
        claims["exp"] = int(now) + options.expires
    for claim in options.claim:
        name, equals, value = claim.partition("=")
        if not equals:
            raise ValueError(f"--claim: expected NAME=VALUE, not {claim!r}")
        claims[name] = value
    return claims


def _make(options: argparse.Namespace) -> None:
    claims = _claims(options, time.time())
    key: Any = Path(options.secret_file).read_bytes()
    headers = {"kid": options.kid} if options.kid else None
    try:
        if options.algorithm in HMACS:
            key = key.removesuffix(b"\n")
        else:
            key = load_pem_private_key(key, None)
        made = jwt.encode(claims, key, options.algorithm, headers)
    except (jwt.PyJWTError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{options.secret_file}: {error}") from None
    if len(made) > MAX_TOKEN:
        print(f"pubsub: {size_advice(made)}", file=sys.stderr)
    print(made)


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


def _inspect(options: argparse.Namespace) -> None:
    token = (sys.stdin.read() if options.token == "-" else options.token).strip()
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError as error:
        raise ValueError(f"not a token: {error}") from None
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
    print(json.dumps(shown, indent=2))
    if len(token) > MAX_TOKEN:
        print(f"pubsub: {size_advice(token)}", file=sys.stderr)
