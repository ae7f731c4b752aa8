"""``pubsub secret``: writes a master secret to a file that only its owner can read."""

from __future__ import annotations

import argparse
import os
import secrets
from typing import TYPE_CHECKING

from pubsub.errors import StartError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_BYTES = 48


def add(commands: Commands) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "secret", help="write a new master secret to a file that only its owner can read"
    )
    command.add_argument("file", help="the file to create; an existing file is not replaced")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    try:
        make(options.file)
    except FileExistsError:
        raise StartError(
            f"{options.file}: the file exists and is not replaced; choose another name"
        ) from None
    print(f"{options.file}: secret written; start the broker with --secret-file {options.file}")


def make(path: str) -> None:
    """Write a new random secret, as text, to ``path`` with mode 0600.

    Raises FileExistsError instead of replacing a secret in use.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(_BYTES) + "\n")
