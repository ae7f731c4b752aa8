"""The configuration file as TOML tables."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from pubsub.errors import ConfigurationError

# Settings of former versions, and the name that logs use for a table, with the right names.
_OTHER_NAMES = {"handshake-timeout": "handshake-seconds", "http": "admin"}


def read_file(path: str) -> dict[str, Any]:
    """Return the parsed file; raises ConfigurationError."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from None


def check_keys(
    where: str,
    table: Mapping[str, object],
    known: Collection[str],
    tables: Collection[str] = (),
    places: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise ConfigurationError if ``table`` has a key that is not ``known``.

    ``where`` names the table in the message; it is empty for the top level. ``tables`` are those
    of ``known`` that are tables, and ``places`` the places of settings that belong elsewhere.
    """
    for key, value in table.items():
        if key in known:
            continue
        if key in places:
            hint = f"; it belongs to {places[key]}"
        else:
            as_table = isinstance(value, dict | list)
            near = _near(key, [name for name in known if as_table or name not in tables])
            hint = f"; did you mean {near}?" if near else ""
        raise ConfigurationError(f"{where}{key}: no such setting{hint}")


def _near(key: str, known: Collection[str]) -> str:
    other = _OTHER_NAMES.get(key, "")
    return other if other in known else "".join(get_close_matches(key, known, 1))
