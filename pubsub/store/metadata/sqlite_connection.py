"""``SqliteConnection``: SQLite, with its own kind of error for each damage of the file."""

from __future__ import annotations

import sqlite3
from typing import Any


class SqliteConnection(sqlite3.Connection):
    """A connection for ``sqlite3.connect``."""

    def execute(self, *given: Any) -> sqlite3.Cursor:
        """See ``sqlite3.Connection``: a message of SQLite may quote a damaged text."""
        try:
            return super().execute(*given)
        except UnicodeDecodeError:
            raise sqlite3.DatabaseError("the file is damaged") from None
