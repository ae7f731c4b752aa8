"""The tables of the metadata of a log, and damage in them that SQLite does not see.

SQLite checks neither the names of columns nor, above all, the types of values: a changed bit makes
a number a text or NULL, and the file is sound for it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from pubsub.store.metadata.row_salvage import KeyedTable, salvage

CREATE = """
CREATE TABLE metadata (
    space TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (space, key)
) WITHOUT ROWID;
-- The offset at which a topic ended; its messages before that are not read again.
CREATE TABLE ended (topic TEXT PRIMARY KEY, offset INTEGER NOT NULL) WITHOUT ROWID;
-- Messages before the offset have expired, of the topics of which the pattern is the first match
-- in the order of `place`.
CREATE TABLE horizons (
    place INTEGER PRIMARY KEY, pattern TEXT NOT NULL UNIQUE, offset INTEGER NOT NULL
);
-- One row each time the log was opened for writing; offsets from `begins` on were assigned since.
CREATE TABLE epochs (
    number INTEGER PRIMARY KEY, begins INTEGER NOT NULL, opened INTEGER NOT NULL,
    mark INTEGER NOT NULL, boot BLOB NOT NULL
);
-- Segments that get no more records; `last` is their largest timestamp in µs.
CREATE TABLE segments (
    base INTEGER NOT NULL, sequence INTEGER NOT NULL, stop INTEGER NOT NULL,
    size INTEGER NOT NULL, salt BLOB NOT NULL, created INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (base, sequence)
) WITHOUT ROWID;
-- One row: the log's random id; the first offset; the newest segment; the place up to which
-- operations were applied; the offset after the last message, and the ceiling, as of then.
CREATE TABLE state (
    log_id BLOB NOT NULL, first INTEGER NOT NULL,
    newest_base INTEGER NOT NULL, newest_sequence INTEGER NOT NULL,
    base INTEGER NOT NULL, sequence INTEGER NOT NULL, position INTEGER NOT NULL,
    stop INTEGER NOT NULL, ceiling INTEGER NOT NULL
);
"""

# The place in the file of the version that a program must know to write it, and the highest one.
_WRITE_VERSION, _WAL = 18, 2


def _columns() -> dict[str, list[tuple[str, str]]]:
    """Return the columns of each table, with their types."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(CREATE)
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name: _columns_of(connection, name) for (name,) in tables.fetchall()}


def _columns_of(connection: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    rows = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return [(name, kind) for _, name, kind, *_ in rows]


TABLES = _columns()
_KINDS: dict[str, type] = {"TEXT": str, "BLOB": bytes, "INTEGER": int}
# The columns of the key, of the tables whose rows are read from a damaged file.
_KEYS = {"metadata": 2, "ended": 1, "horizons": 1, "epochs": 1, "segments": 2}


def problems(connection: sqlite3.Connection) -> list[str]:
    """Return the damage in the file, one text for each; raises sqlite3.Error."""
    rows = connection.execute("PRAGMA integrity_check").fetchall()
    found = [text for (text,) in rows if text != "ok"]
    return (
        found
        or damaged_header(connection)
        or damaged_tables(connection)
        or damaged_rows(connection)
    )


def readable_rows(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """Return the sound rows of a damaged table, in the order of its key."""
    return salvage(connection, _keyed(table))


def _keyed(table: str) -> KeyedTable:
    columns = [(name, _KINDS[kind]) for name, kind in TABLES[table]]
    return KeyedTable(table, columns, _KEYS.get(table, 0))


def damaged_header(connection: sqlite3.Connection) -> list[str]:
    """Return whether SQLite would not write the file, in one text; raises sqlite3.Error.

    It takes a file as read-only whose header has a higher number than it knows in byte 18.
    """
    version = connection.serialize()[_WRITE_VERSION]
    if version <= _WAL:
        return []
    return [f"its header says that it is read-only (write version {version})"]


def damaged_tables(connection: sqlite3.Connection) -> list[str]:
    """Return what is wrong with the tables, one text for each; raises sqlite3.Error."""
    found = []
    for table, columns in TABLES.items():
        if _columns_of(connection, table) != columns:
            found.append(f"the table {table} is missing or has other columns")
            continue
        wrong = " OR ".join(f"typeof({name}) != '{kind.lower()}'" for name, kind in columns)
        (count,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {wrong}").fetchone()
        if count:
            found.append(f"the table {table} has {count} damaged rows")
    if not found and connection.execute("SELECT count(*) FROM state").fetchone() != (1,):
        found.append("the table state does not have one row")
    return found


def damaged_rows(connection: sqlite3.Connection) -> list[str]:
    """As ``damaged_tables``, by reading all rows: of texts that are not UTF-8, too."""
    found = []
    for table in TABLES:
        rows = connection.execute(f"SELECT * FROM {table}")
        is_sound = _keyed(table).is_sound
        count = sum(not is_sound(row) for row in rows)
        if count:
            found.append(f"the table {table} has {count} damaged rows")
    return found


def text_or_bytes(data: bytes) -> str | bytes:
    """Return a text of a damaged file."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
