"""How far the history had been committed, noted beside it.

SQLite leaves out the end of its log from the first frame on that is not as it was written, and
cannot say that there was more. This note says so: what is missing then is reported, and its
offsets are not given out again. It is written after each commit and not synced, as it only has to
outlive damage to the history, not to replace it.
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
"""When and how the log began, and the offset after the last that was committed."""
_CRC = struct.Struct("<I")


class Mark:
    """The note on the history at ``path``. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(f"{path}-end", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._origin = (0, 0)

    def begin(self, connection: sqlite3.Connection) -> int:
        """What was noted of this log, or 0; to be called before ``write``."""
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
        # Another log's, whose files were moved away, says nothing of this one.
        return stop if tuple(origin) == self._origin else 0

    def write(self, stop: int) -> None:
        """Everything before ``stop`` is committed."""
        note = _NOTE.pack(*self._origin, stop)
        # What is committed is committed: a note that is behind is as good as none.
        try:
            os.pwrite(self._file, note + _CRC.pack(crc32(note)), 0)
        except OSError:
            return

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def mend_end(connection: sqlite3.Connection, noted: int, now: int) -> tuple[int, int] | None:
    """Have the log go on where it had been, within a transaction at ``now`` (µs).

    Returns the range of offsets that had been committed and is not there any more, if there is one.
    """
    there: int
    (there,) = connection.execute(NEXT).fetchone()
    end = max(there, noted)
    if end > there:
        insert_lost(connection, there, end, now)
    connection.execute("UPDATE state SET next = ?", (end,))
    return (there, end) if end > there else None


def insert_lost(connection: sqlite3.Connection, start: int, stop: int, now: int) -> None:
    """Note that what was committed of a range is not there any more.

    Who reads it is told that it is damaged, until it expires like messages of the time ``now``
    (µs), when it was found missing.
    """
    # Nothing that can be read: its checksum is one that is never right.
    insert_block(connection, Block(start, stop - start, now, now, 0, -1, b"", b"", b"", b"", b""))
    connection.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (LOST,))
    connection.execute(
        "INSERT INTO contents SELECT ?, id, ?, 0 FROM topics WHERE name = ?",
        (start, stop - start, LOST),
    )
