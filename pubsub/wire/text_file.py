"""Small files of text that users name: a token, a password, options."""

from __future__ import annotations

import os
from pathlib import Path

from pubsub.errors import ConfigurationError
from pubsub.small_file import read_bounded

_LONGEST_LINE = 64 * 1024


def read_line(path: str | os.PathLike[str]) -> str:
    """Return the first line of a file, without spaces around it. Raises OSError, ValueError."""
    with Path(path).open("rb") as file:
        return file.readline(_LONGEST_LINE).decode().strip()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file. Raises ConfigurationError, OSError.

    The error of a decoder would not name the file, and has bytes of it, which can be secret.
    """
    try:
        # A command may be given a pipe of the shell.
        text = read_bounded(Path(path).expanduser()).decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: the file is not text in UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
