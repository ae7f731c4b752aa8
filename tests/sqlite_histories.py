"""History files of version 0.1 that are written without a broker."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pubsub.store.migration.sqlite_history import APPLICATION, SqliteHistory, checksum
from pubsub.store.records.block import decode_block, encode_block
from pubsub.store.records.stored_runs import RunRecord, topics_of
from tests.histories import RUN, START, BatchWriter

_CREATE = f"""
CREATE TABLE blocks (
    base INTEGER PRIMARY KEY, count INTEGER NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, run INTEGER NOT NULL, crc INTEGER NOT NULL,
    names BLOB NOT NULL, runs BLOB NOT NULL, lengths BLOB NOT NULL, headers BLOB NOT NULL,
    payloads BLOB NOT NULL
);
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE contents (
    base INTEGER NOT NULL, topic INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (base, topic)
) WITHOUT ROWID;
CREATE INDEX contents_by_topic ON contents (topic, base);
CREATE TABLE metadata (
    space TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (space, key)
) WITHOUT ROWID;
CREATE TABLE state (next INTEGER NOT NULL, clean INTEGER NOT NULL);
INSERT INTO state VALUES (0, 1);
CREATE TABLE epochs (
    number INTEGER PRIMARY KEY, begins INTEGER NOT NULL, opened INTEGER NOT NULL,
    mark INTEGER NOT NULL
);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = 1;
"""


class History(BatchWriter):
    """A history file that is open for writing."""

    def __init__(self, path: Path, start: int) -> None:
        self.start = start
        self.path = path
        new = not path.exists()
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        if new:
            self.connection.executescript(_CREATE)
        (self.next,) = self.connection.execute("SELECT next FROM state").fetchone()
        cursor = self.connection.execute(
            "INSERT INTO epochs (begins, opened, mark) VALUES (?, ?, 77)", (self.next, start)
        )
        self.epoch = f"{cursor.lastrowid}-{77:08x}"

    def write_runs(self, base: int, runs: Sequence[RunRecord]) -> None:
        """See ``BatchWriter``: as one block."""
        block = encode_block(runs, RUN, base, self.next)
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        row = (
            block.base, block.count, block.first, block.last, block.run, checksum(block),
            block.names, block.runs, block.lengths, block.headers, block.payloads,
        )  # fmt: skip
        execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        for name, (number, nbytes) in topics_of(runs).items():
            execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (name,))
            execute(
                "INSERT INTO contents SELECT ?, id, ?, ? FROM topics WHERE name = ?",
                (base, number, nbytes, name),
            )
        execute("UPDATE state SET next = ?", (self.next,))
        execute("COMMIT")

    def join(self, base: int) -> None:
        """Make one block of those from ``base`` on, as version 0.1 did in the background."""
        with closing(SqliteHistory(self.path)) as own:
            blocks = [row.block for row in own.blocks(base) if row.block is not None]
        runs = [run.record() for one in blocks for run in decode_block(one)]
        self.connection.execute("DELETE FROM blocks WHERE base >= ?", (base,))
        self.connection.execute("DELETE FROM contents WHERE base >= ?", (base,))
        self.write_runs(base, runs)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


def history(path: Path, start: int = START) -> closing[History]:
    """Open or create a file, in a new epoch; timestamps begin at ``start`` (µs)."""
    return closing(History(path, start))
