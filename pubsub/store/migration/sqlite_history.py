"""Reading a history of version 0.1: a file of SQLite and its journals, to be migrated.

The messages are in rows of the table ``blocks``, with the columns of a ``Block``; the table
``contents`` has the topics of each row that have not expired. The newest messages may be in one of
two journals only, if the broker did not stop in order.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from zlib import crc32

from pubsub.errors import StartError
from pubsub.store.metadata.metadata import Epoch
from pubsub.store.metadata.sqlite_connection import SqliteConnection
from pubsub.store.records.block import Block
from pubsub.store.records.block_columns import RUN

APPLICATION = 0x50755342
JOURNALS = ("-sync1", "-sync2")
_ENDED = "\0" * 256
"""The names of topics that have ended begin with this; no other name is as long."""
_COLUMNS = "base, count, first, last, run, crc, names, runs, lengths, headers, payloads"
_NEXT = (
    "SELECT max(next, coalesce((SELECT base + count FROM blocks ORDER BY base DESC LIMIT 1), 0)) "
    "FROM state"
)
_U32 = struct.Struct("<I")
_FIXED = struct.Struct("<qIqqq")
_JOURNAL_HEAD = struct.Struct("<24s8sqIqqqI5I")


@dataclass(frozen=True, slots=True)
class OldBlock:
    """A row: its messages if they can be read, else None; and the topics that have not expired."""

    base: int
    stop: int
    last: int
    block: Block | None
    topics: frozenset[str]


class SqliteHistory:
    """The history at ``path``. Raises StartError or sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # It may have a log of SQLite's that has to be recovered, which needs the right to write.
        self._connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            factory=SqliteConnection,
        )
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION or version != 1:
            raise StartError(f"history: {path} is an SQLite file, but not a history of version 0.1")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def bounds(self) -> tuple[int, int]:
        """Return the first offset and the next one, without messages that are only in a journal."""
        (stop,) = self._connection.execute(_NEXT).fetchone()
        row = self._connection.execute("SELECT min(base) FROM blocks").fetchone()
        return (stop if row[0] is None else row[0]), stop

    def metadata(self) -> list[tuple[str, str, bytes]]:
        """Return tables, keys and values."""
        return self._connection.execute("SELECT space, key, value FROM metadata").fetchall()

    def epochs(self) -> list[Epoch]:
        """Return the epochs, the newest last."""
        rows = self._connection.execute(
            "SELECT number, begins, opened, mark FROM epochs ORDER BY number"
        )
        return [
            Epoch(number, begins, opened, mark, bytes(16)) for number, begins, opened, mark in rows
        ]

    def blocks(self, offset: int) -> Iterator[OldBlock]:
        """Yield the rows from ``offset`` on, then the messages that are in a journal only."""
        rows = self._connection.execute(
            "SELECT base, count, last FROM blocks WHERE base >= ? ORDER BY base", (offset,)
        )
        for base, count, last in rows:
            yield OldBlock(base, base + count, last, self._read(base), self._topics(base))
        _, end = self.bounds()
        for block in self._journaled(max(end, offset)):
            yield OldBlock(block.base, block.stop, block.last, block, frozenset(block.topics()))

    def _read(self, base: int) -> Block | None:
        try:
            row = self._connection.execute(
                f"SELECT {_COLUMNS} FROM blocks WHERE base = ?", (base,)
            ).fetchone()
            base, count, first, last, run, crc, *columns = row
            block = Block(base, count, first, last, run, *columns)
            return block if checksum(block) == crc else None
        except (sqlite3.DatabaseError, TypeError):
            return None

    def _topics(self, base: int) -> frozenset[str]:
        rows = self._connection.execute(
            "SELECT name FROM contents JOIN topics ON id = topic WHERE base = ?", (base,)
        )
        return frozenset(name for (name,) in rows if not name.startswith(_ENDED))

    def _journaled(self, offset: int) -> list[Block]:
        """Return the messages from ``offset`` on that are in a journal of the last epoch."""
        known = self.epochs()
        if not known:
            return []
        chains = []
        for ending in JOURNALS:
            path = Path(f"{self._path}{ending}")
            data = path.read_bytes() if path.exists() else b""
            chains.append(list(_pieces(data, known[-1].name.encode())))
        blocks: list[Block] = []
        for pieces in sorted(filter(None, chains), key=lambda pieces: pieces[0].base):
            if pieces[0].base >= offset:
                own = groupby(pieces, attrgetter("base"))
                blocks += [_join_pieces(list(group)) for _, group in own]
                offset = blocks[-1].stop
        return blocks


def checksum(block: Block) -> int:
    """Return the CRC-32 that the file has of a block."""
    columns = (block.names, block.runs, block.lengths, block.headers, block.payloads)
    sized = [part for one in columns for part in (_U32.pack(len(one)), one)]
    fixed = _FIXED.pack(block.base, block.count, block.first, block.last, block.run)
    return crc32(b"".join((fixed, *sized)))


def _join_pieces(pieces: Sequence[Block]) -> Block:
    """Return the block of consecutive pieces; the last one has its number of messages."""
    last = pieces[-1]
    return Block(
        last.base,
        last.count,
        min([piece.first for piece in pieces]),
        max([piece.last for piece in pieces]),
        last.run,
        b"".join([piece.names for piece in pieces]),
        b"".join([piece.runs for piece in pieces]),
        b"".join([piece.lengths for piece in pieces]),
        b"".join([piece.headers for piece in pieces]),
        b"".join([piece.payloads for piece in pieces]),
    )


def _pieces(data: bytes, epoch: bytes) -> Iterator[Block]:
    """Yield the pieces at the start of a journal, up to the first that does not continue.

    A piece has an epoch, the salt of the journal, the head of a block with a checksum that covers
    the salt, the sizes of its columns, and the columns.
    """
    at, next_offset, salt = 0, None, None
    while at + _JOURNAL_HEAD.size <= len(data):
        own_epoch, own_salt, base, count, first, last, run, crc, *sizes = _JOURNAL_HEAD.unpack_from(
            data, at
        )
        at += _JOURNAL_HEAD.size
        if own_epoch.rstrip(b"\0") != epoch or at + sum(sizes) > len(data):
            return
        if salt not in (None, own_salt):
            return
        salt = own_salt
        columns = []
        for size in sizes:
            columns.append(data[at : at + size])
            at += size
        piece = Block(base, count, first, last, run, *columns)
        if crc32(own_salt, checksum(piece)) != crc:
            return
        start = base + RUN.unpack_from(piece.runs)[0]
        if next_offset not in (None, start):
            return
        next_offset = piece.stop
        yield piece
