"""``pubsub secret``: writes a master secret to a file that only its owner can read."""

from __future__ import annotations

import click

from pubsub.commands.file_name import FILE_NAME
from pubsub.commands.new_file import write_new
from pubsub.errors import StartError

_BYTES = 48


@click.command("secret")
@click.argument("file", type=FILE_NAME)
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

    Raises FileExistsError instead of replacing a secret in use, and OSError.
    """
    import secrets

    write_new(path, secrets.token_urlsafe(_BYTES) + "\n", 0o600)


COMMAND = secret
