"""The options for a queue key: itself, or a file, as other users see arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pubsub.commands.file_name import file_option

_KeyCommand = Callable[..., Any]


def queue_key_options(help: str) -> Callable[[_KeyCommand], _KeyCommand]:
    """Add ``--queue-key`` with this help, and ``--queue-key-file``; see ``given_queue_key``."""

    def add(command: _KeyCommand) -> _KeyCommand:
        command = file_option("--queue-key-file", help="File with the queue key.")(command)
        seen = f"{help}; other users can read it in the process list."
        return click.option("--queue-key", metavar="KEY", help=seen)(command)

    return add


def given_queue_key(key: str | None, file: str | None, required: bool = True) -> str | None:
    """Return the argument, or the text of ``file`` without the line break at its end.

    Raises click.UsageError, and OSError.
    """
    from pubsub.wire.text_file import read_text

    if (key is not None and file is not None) or (required and key is None and file is None):
        raise click.UsageError(
            "give either --queue-key or --queue-key-file", click.get_current_context()
        )
    return key if file is None else read_text(file).removesuffix("\n")
