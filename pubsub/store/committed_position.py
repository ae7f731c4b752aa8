"""The position up to which the history was committed, in a file of its own.

SQLite ignores the end of its log from the first frame on that has changed, and cannot report that
there was more. With this position the missing messages are reported, and their offsets are not
assigned again. It is written after each commit and not synced, as it only detects damage to the
history and does not replace it.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from pathlib import Path
from zlib import crc32

from pubsub.store.block import Block
from pubsub.store.merge import insert_block
from pubsub.store.retention import LOST
from pubsub.store.schema import NEXT

_NOTE = struct.Struct("<qqq")
"""The time and the random number of the first epoch, and the offset after the last message."""
_CRC = struct.Struct("<I")


class CommittedPosition:
    """The position of the history at ``path``. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(f"{path}-end", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._origin = (0, 0)

    def begin(self, connection: sqlite3.Connection) -> int:
        """Return the position that was written for this log, or 0; call it before ``write``."""
        row = connection.execute(
            "SELECT opened, mark FROM epochs ORDER BY number LIMIT 1"
        ).fetchone()
        if row is None:
            return 0
        self._origin = row
        noted = os.pread(self._file, _NOTE.size + _CRC.size, 0)
        if len(noted) < _NOTE.size + _CRC.size:
            return 0
        if _CRC.unpack_from(noted, _NOTE.size)[0] != crc32(noted[: _NOTE.size]):
            return 0
        *origin, stop = _NOTE.unpack_from(noted)
        # The position may be that of another log, whose files have been moved away.
        return stop if tuple(origin) == self._origin else 0

    def write(self, stop: int) -> None:
        """Write that every message before ``stop`` is committed."""
        note = _NOTE.pack(*self._origin, stop)
        # The commit is valid without it, so errors are ignored.
        try:
            os.pwrite(self._file, note + _CRC.pack(crc32(note)), 0)
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def mark_lost_end(connection: sqlite3.Connection, noted: int, now: int) -> tuple[int, int] | None:
    """Continue the log at the offset ``noted`` if it ends before, in a transaction at ``now`` (µs).

    Returns the range of offsets that were committed and are missing, if there is one.
    """
    found: int
    (found,) = connection.execute(NEXT).fetchone()
    end = max(found, noted)
    if end > found:
        insert_lost(connection, found, end, now)
    connection.execute("UPDATE state SET next = ?", (end,))
    return (found, end) if end > found else None


def insert_lost(connection: sqlite3.Connection, start: int, stop: int, now: int) -> None:
    """Insert a damaged block for a range of committed messages that are missing.

    Readers get the range as damaged, until it expires like messages of the time ``now`` (µs).
    """
    # Nothing in it can be read, as no checksum is negative.
    insert_block(connection, Block(start, stop - start, now, now, 0, -1, b"", b"", b"", b"", b""))
    connection.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (LOST,))
    connection.execute(
        "INSERT INTO contents SELECT ?, id, ?, 0 FROM topics WHERE name = ?",
        (start, stop - start, LOST),
    )
