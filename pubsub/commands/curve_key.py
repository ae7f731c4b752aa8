"""``pubsub curve-key``: writes a key pair for CURVE, the encryption of ZeroMQ."""

from __future__ import annotations

import os
from contextlib import suppress

import click

from pubsub.commands.file_name import FILE_NAME
from pubsub.commands.new_file import write_new
from pubsub.errors import StartError


@click.command("curve-key")
@click.argument("file", type=FILE_NAME)
def curve_key(file: str) -> None:
    """Write a new secret key to FILE, and its public key to FILE.pub.

    Only the owner can read FILE. Both have one line of 40 characters (Z85). The public key is
    printed. Existing files are not replaced.
    """
    from pubsub.broker.credentials.curve_keys import encode_key, new_key_pair

    try:
        pair = new_key_pair()
    except ImportError:
        raise StartError(
            "curve-key needs PyNaCl; install it with pip install 'pubsub-broker[curve]'"
        ) from None
    public = encode_key(pair.public)
    written: list[str] = []
    try:
        for path, text, mode in (
            (file, encode_key(pair.secret), 0o600),
            (f"{file}.pub", public, 0o644),
        ):
            write_new(path, f"{text}\n", mode)
            written.append(path)
    except BaseException as error:
        for path in written:
            with suppress(OSError):
                os.unlink(path)
        if isinstance(error, FileExistsError):
            raise StartError(
                f"{error.filename}: the file exists and is not replaced; choose another name"
            ) from None
        raise
    click.echo(public)


COMMAND = curve_key
