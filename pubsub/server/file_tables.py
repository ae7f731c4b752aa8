"""The configuration file as TOML tables."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pubsub.errors import ConfigurationError

# Settings of former versions, and their present names.
_FORMER = {"handshake-timeout": "handshake-seconds"}


def read_file(path: str) -> dict[str, Any]:
    """Return the parsed file; raises ConfigurationError."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from None


def check_keys(where: str, table: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise ConfigurationError if ``table`` has a key that is not ``known``.

    ``where`` names the table in the message; it is empty for the top level.
    """
    for key in table:
        if key not in known:
            near = _FORMER.get(key) or "".join(get_close_matches(key, list(known), 1))
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigurationError(f"{where}{key}: no such setting{hint}")
