"""The metadata of a log, in SQLite: a copy of the metadata in its records, and its segments.

A record's operations are applied once the record is on disk, together with the place of the record,
so that the operations behind that place can be applied again after a crash.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from pubsub.errors import NewerVersion, StartError
from pubsub.store.disk_remedies import history_command
from pubsub.store.metadata.metadata_tables import (
    CREATE,
    damaged_header,
    damaged_tables,
    problems,
    readable_rows,
    text_or_bytes,
)
from pubsub.store.metadata.sqlite_connection import SqliteConnection
from pubsub.store.records.record import Begin, End, Operation, Put

APPLICATION = 0x50755342 + 1
BUSY_SECONDS = 10.0
"""The time that a program waits for another one which has locked the file."""
VERSION = 1


class LogPlace(NamedTuple):
    """A position in a segment; places are in the order of the log."""

    base: int
    sequence: int
    position: int


class SealedSegment(NamedTuple):
    """A row of the table of segments."""

    base: int
    sequence: int
    stop: int
    size: int
    salt: bytes
    created: int
    last: int


class LogState(NamedTuple):
    """The row of the table of states."""

    log_id: bytes
    first: int
    newest: tuple[int, int]
    applied: LogPlace
    stop: int
    ceiling: int


class Epoch(NamedTuple):
    """A row of the table of epochs."""

    number: int
    begins: int
    opened: int
    mark: int
    boot: bytes

    @property
    def name(self) -> str:
        """The name of the epoch, as clients see it."""
        return f"{self.number}-{self.mark:08x}"


class Metadata:
    """The file at ``path``. Its methods may be called in any thread; they raise sqlite3.Error.

    It is opened in spite of damage in its tables only if ``damaged``; texts that are not UTF-8 are
    bytes then.
    """

    def __init__(self, path: Path, read_only: bool = False, damaged: bool = False) -> None:
        mode = "ro" if read_only else "rw"
        if read_only and not (os.access(path.parent, os.W_OK) or Path(f"{path}-wal").exists()):
            # SQLite could not make the files that it shares with a writer; there is none.
            mode += "&immutable=1"
        self._connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=SqliteConnection,
        )
        self._lock = Lock()
        try:
            self._check(path)
            if damaged:
                self._connection.text_factory = text_or_bytes
            elif problems := damaged_tables(self._connection):
                raise sqlite3.DatabaseError("; ".join(problems))
            if not read_only:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
            if not (read_only or damaged):
                self._check_writable()
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def create(cls, path: Path, log_id: bytes, first: int = 0) -> Metadata:
        """Create the file of a log without segments; it appears when it is complete."""
        new = path.with_name(path.name + ".new")
        for name in (new, Path(f"{new}-wal"), Path(f"{new}-shm"), Path(f"{new}-journal")):
            name.unlink(missing_ok=True)
        connection = sqlite3.connect(new, isolation_level=None)
        try:
            connection.executescript(
                f"BEGIN; {CREATE} PRAGMA application_id = {APPLICATION}; "
                f"PRAGMA user_version = {VERSION}; COMMIT;"
            )
            connection.execute(
                "INSERT INTO state VALUES (?, ?, ?, 0, ?, 0, 0, ?, ?)",
                (log_id, first, first, first, first, first),
            )
        finally:
            connection.close()
        new.chmod(0o600)
        new.rename(path)
        return cls(path)

    def _check(self, path: Path) -> None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise StartError(
                f"history: {path} is not the metadata of a history: restore it, or rebuild it "
                f"from the segments with {history_command('repair', path.parent)}"
            )
        if version > VERSION:
            raise NewerVersion(
                f"history: {path} has version {version}, and this broker supports up to {VERSION}; "
                "use the version that wrote it"
            )

    def _check_writable(self) -> None:
        try:
            # Nothing is deleted, but SQLite refuses it for a file that it takes as read-only.
            self._connection.execute("DELETE FROM ended WHERE false")
        except sqlite3.OperationalError:
            if found := damaged_header(self._connection):
                raise sqlite3.DatabaseError("; ".join(found)) from None
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def wait_for_locks(self, seconds: float) -> None:
        """Let a change wait for so long while another program has locked the file."""
        self._connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    # Reading

    def state(self) -> LogState:
        """Return the state."""
        with self._lock:
            row = self._connection.execute("SELECT * FROM state").fetchone()
        log_id, first, base, sequence, *applied, stop, ceiling = row
        return LogState(log_id, first, (base, sequence), LogPlace(*applied), stop, ceiling)

    def version(self) -> int:
        """Return a number that changes when another process has changed the file."""
        with self._lock:
            row = self._connection.execute("PRAGMA data_version").fetchone()
        return int(row[0])

    def problems(self) -> list[str]:
        """Return the damage in the file."""
        with self._lock:
            return problems(self._connection)

    def readable(self, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of a damaged table that can be read."""
        with self._lock:
            return readable_rows(self._connection, table)

    def items(self) -> list[tuple[str, str, bytes]]:
        """Return tables, keys and values."""
        with self._lock:
            return self._connection.execute("SELECT space, key, value FROM metadata").fetchall()

    def ended(self) -> dict[str, int]:
        """Return the topics that have ended, with their offsets."""
        with self._lock:
            return dict(self._connection.execute("SELECT topic, offset FROM ended").fetchall())

    def horizons(self) -> dict[str, int]:
        """Return the offset of each pattern, in the order of the patterns."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT pattern, offset FROM horizons ORDER BY place"
            ).fetchall()
        return dict(rows)

    def epochs(self) -> list[Epoch]:
        """Return the epochs, the newest last."""
        with self._lock:
            rows = self._connection.execute("SELECT * FROM epochs ORDER BY number").fetchall()
        return [Epoch(*row) for row in rows]

    def segments(self) -> list[SealedSegment]:
        """Return the segments that get no more records."""
        with self._lock:
            rows = self._connection.execute("SELECT * FROM segments ORDER BY base, sequence")
            return [SealedSegment(*row) for row in rows]

    def copy_to(self, path: Path) -> None:
        """Copy the file, as it is now, to ``path``."""
        path.touch(mode=0o600)
        copy = sqlite3.connect(path)
        try:
            with self._lock:
                self._connection.backup(copy)
        finally:
            copy.close()

    # Writing

    def import_rows(
        self,
        items: Iterable[tuple[str, str, bytes]] = (),
        epochs: Iterable[Epoch] = (),
        ended: Mapping[str, int] | None = None,
        horizons: Mapping[str, int] | None = None,
        stop: int | None = None,
    ) -> None:
        """Take the rows of another file; ``stop`` is the offset after its last message."""
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO metadata VALUES (?, ?, ?)", items)
            connection.executemany("INSERT OR REPLACE INTO epochs VALUES (?, ?, ?, ?, ?)", epochs)
            connection.executemany(
                "INSERT OR REPLACE INTO ended VALUES (?, ?)", (ended or {}).items()
            )
            connection.executemany(
                "INSERT INTO horizons VALUES (NULL, ?, ?)", (horizons or {}).items()
            )
            if stop is not None:
                connection.execute("UPDATE state SET stop = ?, ceiling = ?", (stop, stop))

    def apply(
        self,
        changes: Iterable[tuple[int, Sequence[Operation]]],
        applied: LogPlace,
        stop: int,
        ceiling: int,
        sealed: Sequence[SealedSegment] = (),
    ) -> None:
        """Apply the operations of records; each comes with the record's base."""
        with self._transaction() as connection:
            for base, operations in changes:
                for operation in operations:
                    _apply(connection, base, operation)
            connection.execute(
                "UPDATE state SET newest_base = ?, newest_sequence = ?, base = ?, sequence = ?, "
                "position = ?, stop = ?, ceiling = ?",
                (applied.base, applied.sequence, *applied, stop, ceiling),
            )
            connection.executemany(
                "INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", sealed
            )

    def replace_segments(
        self,
        removed: Iterable[tuple[int, int]],
        added: Iterable[SealedSegment],
        first: int,
    ) -> None:
        """Replace segments by others; ``first`` is the base of the first one after that.

        Everything is in the file itself then, and not only in SQLite's log beside it: the
        operations of segments that are removed can be taken from nowhere else.
        """
        with self._transaction() as connection:
            connection.executemany("DELETE FROM segments WHERE base = ? AND sequence = ?", removed)
            connection.executemany(
                "INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", added
            )
            connection.execute("UPDATE state SET first = ?", (first,))
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def set_horizons(self, horizons: Iterable[tuple[str, int]]) -> None:
        """Store the offset of each pattern, in order, and remove other patterns."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM horizons")
            connection.executemany("INSERT INTO horizons VALUES (NULL, ?, ?)", horizons)

    def remove_ended(self, before: int) -> None:
        """Remove the topics that ended at or before the first offset ``before``."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM ended WHERE offset <= ?", (before,))

    def forget_ended(self, ended: Mapping[str, int]) -> None:
        """Remove topics that ended at these offsets."""
        with self._transaction() as connection:
            connection.executemany(
                "DELETE FROM ended WHERE (topic, offset) = (?, ?)", ended.items()
            )


def _apply(connection: sqlite3.Connection, base: int, operation: Operation) -> None:
    if isinstance(operation, Begin):
        connection.execute(
            "INSERT OR REPLACE INTO epochs VALUES (?, ?, ?, ?, ?)",
            (operation.number, base, operation.opened, operation.mark, operation.boot),
        )
    elif isinstance(operation, End):
        connection.execute(
            "INSERT OR REPLACE INTO ended VALUES (?, ?)", (operation.topic, operation.offset)
        )
    elif operation.value is None:
        connection.execute(
            "DELETE FROM metadata WHERE space = ? AND key = ?", (operation.table, operation.key)
        )
    else:
        assert isinstance(operation, Put)
        connection.execute("INSERT OR REPLACE INTO metadata VALUES (?, ?, ?)", tuple(operation))
