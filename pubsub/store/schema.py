"""The file of the durable history: its tables, their version, and how it is opened.

One process writes it, which a lock on a file beside it ensures. (SQLite's own exclusive lock would
keep out readers as well.) Any number of processes may read it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pubsub.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator

APPLICATION = 0x50755342
PAGE_BYTES = 8192
WAL_BYTES = 16 * 1024**2
"""Bytes in SQLite's log from which on it is copied to the file."""
_BUSY_SECONDS = 10.0

CREATE = """
CREATE TABLE blocks (
    base INTEGER PRIMARY KEY, count INTEGER NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, run INTEGER NOT NULL, crc INTEGER NOT NULL,
    names BLOB NOT NULL, runs BLOB NOT NULL, lengths BLOB NOT NULL, headers BLOB NOT NULL,
    payloads BLOB NOT NULL
);
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
-- The index: a topic's messages in a block have expired when their row here is deleted.
CREATE TABLE contents (
    base INTEGER NOT NULL, topic INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (base, topic)
) WITHOUT ROWID;
CREATE INDEX contents_by_topic ON contents (topic, base);
CREATE TABLE metadata (
    space TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (space, key)
) WITHOUT ROWID;
-- One row: the next offset, unless the last block ends after it (see NEXT), as the last block may
-- expire; and whether the history was closed properly.
CREATE TABLE state (next INTEGER NOT NULL, clean INTEGER NOT NULL);
INSERT INTO state VALUES (0, 1);
-- One row each time it was opened for writing; offsets from `begins` on were assigned since.
CREATE TABLE epochs (
    number INTEGER PRIMARY KEY, begins INTEGER NOT NULL, opened INTEGER NOT NULL,
    mark INTEGER NOT NULL
);
"""

NEXT = (
    "SELECT max(next, coalesce((SELECT base + count FROM blocks ORDER BY base DESC LIMIT 1), 0)) "
    "FROM state"
)
"""A query of the next offset."""

UPGRADES: Sequence[Callable[[sqlite3.Connection], None]] = ()
"""The functions that upgrade a file from each version to the next, from version 1 on."""
VERSION = 1 + len(UPGRADES)


class Lock:
    """Prevents a second broker from writing the same file; the end of the process releases it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 20, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise StartError(
                f"history: {path} is in use by another broker (process {holder or 'unknown'}); "
                "give this one a file of its own, --store sqlite:PATH, or --store memory"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._file)


def open_writer(path: Path) -> sqlite3.Connection:
    """Return a connection that can write; create or upgrade the file if necessary.

    The caller must have the Lock, and no other connection in this process. Raises StartError or
    OSError.
    """
    # Only the owner may read messages. SQLite gives its other files the same mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with _start_errors(path):
        connection = _connect(f"file:{_quoted(path)}?mode=rwc")
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Return a connection that can only read, for any thread; raises sqlite3.Error."""
    connection = _connect(f"file:{_quoted(path)}?mode=ro")
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_checkpointer(path: Path) -> sqlite3.Connection:
    """Return a connection for checkpoints beside the writer's; raises sqlite3.Error."""
    connection = _connect(f"file:{_quoted(path)}?mode=rw")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def begin_epoch(connection: sqlite3.Connection) -> str:
    """Begin an epoch at the next offset; return its name.

    A position of an earlier epoch is valid if it is not beyond the beginning of the next one.
    Messages that were lost, for example because the file was restored, lie beyond that.
    """
    mark = secrets.randbits(32)
    cursor = connection.execute(
        f"INSERT INTO epochs (begins, opened, mark) VALUES (({NEXT}), ?, ?)",
        (time.time_ns() // 1000, mark),
    )
    return f"{cursor.lastrowid}-{mark:08x}"


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def _quoted(path: Path) -> str:
    return path.absolute().as_uri().removeprefix("file://")


@contextmanager
def _start_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        hint = "" if isinstance(error, sqlite3.OperationalError) else "; restore or move it away"
        raise StartError(f"history: cannot use {path}: {error}{hint}") from None


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION:
        raise StartError(f"history: {path} is an SQLite file, but not a history of this broker")
    if version > VERSION:
        raise StartError(
            f"history: {path} has version {version}, and this broker supports up to {VERSION}"
        )
    if not tables:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StartError(
            f"history: {path}: the file system does not support SQLite's write-ahead log; "
            "choose a local disk"
        )
    connection.execute("PRAGMA synchronous = FULL")
    # See checkpoint.py.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {2 * WAL_BYTES}")
    if not tables:
        create(connection)
    upgrade(connection, version or VERSION, UPGRADES)


def create(connection: sqlite3.Connection) -> None:
    """Create all tables in one transaction."""
    connection.executescript(
        f"BEGIN IMMEDIATE; {CREATE} PRAGMA application_id = {APPLICATION}; "
        f"PRAGMA user_version = {VERSION}; COMMIT;"
    )


def upgrade(
    connection: sqlite3.Connection,
    version: int,
    steps: Sequence[Callable[[sqlite3.Connection], None]],
) -> None:
    """Upgrade a file of ``version``; each step is one transaction."""
    for number, step in enumerate(steps[version - 1 :], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            step(connection)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
