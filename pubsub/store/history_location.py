"""The location of the history: the setting ``store``, and the default directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pubsub.settings import Kind

NAME = "history"
OLD_NAME = "history.db"
"""The name of the file of version 0.1."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """The directory of the log, and the file of version 0.1 that it is made from, if any.

    Two locations of one directory are the same history, and the file only counts before that.
    """

    directory: Path
    migrate: Path | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"log:{self.directory}"


def default_path(environment: Mapping[str, str]) -> Path:
    """Return a directory in systemd's state directory if it is set, else in the user's (XDG).

    Raises ValueError.
    """
    given = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given, NAME)
    state = environment.get("XDG_STATE_HOME", "")
    # The specification says to ignore relative paths.
    if Path(state).is_absolute():
        return Path(state, "pubsub", NAME)
    try:
        return Path.home() / ".local" / "state" / "pubsub" / NAME
    except RuntimeError:
        raise ValueError("this user has no home directory: expected log:DIR or memory") from None


def _parse(value: object) -> StoreLocation | None:
    if value == "memory":
        return None
    if value in ("log", "sqlite"):
        path = default_path(os.environ)
        return StoreLocation(path, path.with_name(OLD_NAME))
    kind, colon, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
    if colon and rest and kind in ("log", "sqlite"):
        path = _absolute(rest)
        if kind == "log":
            return StoreLocation(path)
        return StoreLocation(path.with_name(path.name + ".log"), path)
    raise ValueError(f"expected memory, log or log:DIR, not {value!r}")


def _absolute(text: str) -> Path:
    """Return a path that does not change if a broker in the background changes its directory."""
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"there is no home directory for {text!r}") from None
    except FileNotFoundError:
        raise ValueError(
            f"the working directory does not exist: expected an absolute path, not {text!r}"
        ) from None


STORE = Kind("memory|log[:DIR]", _parse)
"""A location, or None for memory."""
