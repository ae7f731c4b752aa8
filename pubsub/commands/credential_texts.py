"""The token and the password of a command, of files or the environment. No error shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pubsub.errors import ConfigurationError
from pubsub.wire.text_file import read_text

# Those of RFC 6750. The errors of http.client for other ones, such as a line break, show the token.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


def read_token(file: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the first line of ``file``, else ``PUBSUB_TOKEN``. Raises ConfigurationError.

    The client library reads the same line.
    """
    if file is None:
        token = environment.get("PUBSUB_TOKEN", "").strip()
        return _checked(token, "PUBSUB_TOKEN") if token else None
    token = _read("--token-file", file).strip().partition("\n")[0].strip()
    if not token:
        raise ConfigurationError(f"{file}: the file is empty; write a token to it")
    return _checked(token, file)


def _read(option: str, file: str) -> str:
    try:
        return read_text(file)
    except OSError as error:
        raise ConfigurationError(f"{option}: {file}: {error.strerror}") from None


def _checked(token: str, place: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(f"{place}: not a token, as it has characters that none can have")
    return token


def read_password(file: str | None, environment: Mapping[str, str]) -> str:
    """Return the first line of ``file``, else ``PUBSUB_PASSWORD``; empty if there is none.

    Raises ConfigurationError.
    """
    if file is not None:
        return _read("--password-file", file).partition("\n")[0].removesuffix("\r")
    password = environment.get("PUBSUB_PASSWORD", "")
    try:
        password.encode()
    except UnicodeEncodeError:
        raise ConfigurationError("PUBSUB_PASSWORD: the password is not text in UTF-8") from None
    return password
