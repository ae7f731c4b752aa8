"""``pubsub secret``: writes a master secret to a file that only its owner can read."""

from __future__ import annotations

import os

import click

from pubsub.errors import StartError

_BYTES = 48


@click.command("secret")
@click.argument("file")
def secret(file: str) -> None:
    """Write a new master secret to FILE, which only its owner can read.

    An existing file is not replaced.
    """
    try:
        make(file)
    except FileExistsError:
        raise StartError(
            f"{file}: the file exists and is not replaced; choose another name"
        ) from None
    click.echo(f"{file}: secret written; start the broker with --secret-file {file}")


def make(path: str) -> None:
    """Write a new random secret, as text, to ``path`` with mode 0600.

    Raises FileExistsError instead of replacing a secret in use.
    """
    import secrets

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(_BYTES) + "\n")


COMMAND = secret
