"""``pubsub secret``: makes a file with a master secret that only its owner can read."""

from __future__ import annotations

import argparse
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_BYTES = 48


def add(commands: Commands) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "secret", help="make a file with a new master secret, readable by its owner alone"
    )
    command.add_argument("file", help="a file that does not exist yet")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    make(options.file)
    print(f"{options.file}: a new secret; start the broker with --secret-file {options.file}")


def make(path: str) -> None:
    """Write a new random secret, as text, to ``path`` with mode 0600.

    Raises FileExistsError rather than replace a secret that is in use.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(_BYTES) + "\n")
