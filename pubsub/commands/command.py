"""The command ``pubsub``: master secrets, tokens, histories and the Spark pipeline."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from pubsub.build_info import build_kind
from pubsub.commands import history, pipeline, secret, token
from pubsub.errors import PubSubError


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="pubsub",
        description="Make master secrets and tokens, look after a history, and run the Spark "
        "pipeline.",
    )
    text = f"pubsub {version('pubsub-broker')}, {build_kind()}"
    top.add_argument("--version", action="version", version=text)
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    secret.add(commands)
    token.add(commands)
    history.add(commands)
    pipeline.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Errors are one line on standard error.
    """
    options = parser().parse_args(arguments)
    try:
        code: int | None = options.run(options)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"pubsub: {reason}", file=sys.stderr)
        return 1
    except (PubSubError, ValueError) as error:
        print(f"pubsub: {error}", file=sys.stderr)
        return 1
    return code or 0
