"""The token of a client: from an argument, a file or the environment. It is never shown."""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pubsub.client.client_errors import InvalidUrl
from pubsub.wire.text_file import read_line

VARIABLE = "PUBSUB_TOKEN"


class Secret:
    """A text whose ``repr`` does not show it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def renew(self) -> None:
        """Read the text again, if it comes from a file; it stays if that cannot be read."""

    def __repr__(self) -> str:
        return "Secret(...)"


class FileSecret(Secret):
    """The first line of the file ``path``. The constructor raises InvalidUrl."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        super().__init__(_first_line(path))
        self._path = path

    def renew(self) -> None:
        """See ``Secret``."""
        # A file that is being replaced may be incomplete; there will be another connection.
        with suppress(InvalidUrl):
            self._text = _first_line(self._path)


def read_token(
    token: str | None,
    token_file: str | os.PathLike[str] | None,
    environment: Mapping[str, str] = os.environ,
) -> Secret | None:
    """Return the token: an argument, else the file's first line, else that of PUBSUB_TOKEN.

    Raises InvalidUrl if two are given as arguments, or if the file cannot be read.
    """
    if token is not None and token_file is not None:
        raise InvalidUrl("give one of token and token_file")
    if token_file is not None:
        return FileSecret(Path(token_file))
    text = token if token is not None else environment.get(VARIABLE) or None
    return None if text is None else Secret(text)


def end_of_token(token: str) -> float:
    """Return the time at which a token ends; 0 if it has no end, or is no JSON Web Token."""
    try:
        payload = token.split(".")[1]
        ends = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"]
        return float(ends)
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        return 0.0


def _first_line(path: Path) -> str:
    try:
        line = read_line(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidUrl(f"token_file: {path}: {reason}") from None
    if not line:
        raise InvalidUrl(f"token_file: {path} begins with an empty line")
    return line
