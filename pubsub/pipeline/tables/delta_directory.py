"""The directory of a Delta table: whether there is a table, and its versions."""

from __future__ import annotations

import re
from pathlib import Path

from deltalake import DeltaTable

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.location import Location

_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


def is_delta(location: Location) -> bool:
    """Return whether there is a Delta table. Raises ConfigurationError for an unusable path."""
    _check_path(location)
    if location.is_local and not Path(location.url).is_dir():
        # The library would create the directory.
        return False
    return DeltaTable.is_deltatable(location.url, location.storage_options)


def load_table(location: Location, version: int | None = None) -> DeltaTable:
    """Return a version of the table, by default the newest. Raises ConfigurationError."""
    _check_path(location)
    return DeltaTable(location.url, version, location.storage_options)


def _check_path(location: Location) -> None:
    """Raise ConfigurationError for a path that the library writes to and does not read from."""
    found = _ESCAPE.search(location.url) if location.is_local else None
    if found is not None:
        raise ConfigurationError(
            f"{location}: the package deltalake takes {found[0]} in the path of a directory for an "
            "escaped character, and would read another directory; choose another name"
        )
