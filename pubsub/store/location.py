"""The location of the history: the setting ``store``, and the default file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pubsub.settings import Kind

NAME = "history.db"


def default_path(environment: Mapping[str, str]) -> Path:
    """Return a file in systemd's state directory if it is set, else in the user's (XDG)."""
    given = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given, NAME)
    state = environment.get("XDG_STATE_HOME", "")
    # The specification says to ignore relative paths.
    base = Path(state) if Path(state).is_absolute() else Path("~/.local/state").expanduser()
    return base / "pubsub" / NAME


def _parse(value: object) -> Path | None:
    if value == "memory":
        return None
    if value == "sqlite":
        return default_path(os.environ)
    if isinstance(value, str) and value.startswith("sqlite:") and value != "sqlite:":
        # Absolute, as a broker that runs in the background may change its directory.
        return Path(value.removeprefix("sqlite:")).expanduser().absolute()
    raise ValueError(f"expected memory, sqlite or sqlite:PATH, not {value!r}")


STORE = Kind("memory|sqlite[:PATH]", _parse)
"""A path, or None for memory."""
