"""Merging: many small blocks of idle times become few larger ones, a step at a time."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from pubsub.store.block import Block, Damaged, decode_block, encode_block, topics_of
from pubsub.store.reader import read_block, topics_left
from pubsub.store.runs import Run

# Payload bytes of a merged block, and how many blocks it takes to be worth it.
_BYTES = 256 * 1024
_FEWEST = 16
# Blocks that one step looks at.
_STEP = 512
# µs: blocks are left alone for so long, and those of such a span stay apart, as they expire whole.
_SETTLED = 5_000_000
_SPAN = 600_000_000


class _Row(NamedTuple):
    """A block as far as merging goes."""

    base: int
    nbytes: int
    first: int
    last: int
    run: int


class Merger:
    """Walks along the log; ``step`` merges the next stretch of small neighbours."""

    def __init__(self) -> None:
        self._cursor = -1

    def step(self, connection: sqlite3.Connection, now: int) -> tuple[int | None, bool]:
        """Merge within a transaction.

        Returns the base of what was merged, and whether there may be more to merge.
        """
        rows = [
            _Row(*row)
            for row in connection.execute(
                "SELECT base, length(payloads), first, last, run FROM blocks "
                "WHERE base > ? AND last < ? ORDER BY base LIMIT ?",
                (self._cursor, now - _SETTLED, _STEP),
            )
        ]
        start, stop = _stretch(rows)
        if stop - start < _FEWEST:
            # What is at the end may go on with blocks that are still to come.
            if start:
                self._cursor = rows[start - 1].base
            return None, start > 0 and len(rows) == _STEP
        self._cursor = rows[stop - 1].base
        try:
            blocks = [read_block(connection, row.base) for row in rows[start:stop]]
        except Damaged:
            # Left as it is, and so are its neighbours: it is reported when it is read.
            return None, True
        _merge(connection, blocks)
        return rows[start].base, True


def _stretch(rows: list[_Row]) -> tuple[int, int]:
    """The first stretch of ``rows`` that is worth merging, else the last of all."""
    start = size = 0
    for index, row in enumerate(rows):
        size += row.nbytes
        first = rows[start]
        if size > _BYTES or row.run != first.run or row.last - first.first > _SPAN:
            if index - start >= _FEWEST:
                return start, index
            start, size = index, row.nbytes
            if size > _BYTES:
                start, size = index + 1, 0
    return min(start, len(rows)), len(rows)


def _merge(connection: sqlite3.Connection, blocks: list[Block]) -> None:
    base, stop = blocks[0].base, blocks[-1].stop
    runs: list[Run] = []
    for block in blocks:
        runs += decode_block(block, topics_left(connection, block.base))
    span = (base, stop)
    connection.execute("DELETE FROM contents WHERE base >= ? AND base < ?", span)
    connection.execute("DELETE FROM blocks WHERE base >= ? AND base < ?", span)
    insert_block(connection, encode_block(runs, blocks[0].run, base, stop))
    for name, (count, nbytes) in topics_of(runs).items():
        connection.execute(
            "INSERT INTO contents SELECT ?, id, ?, ? FROM topics WHERE name = ?",
            (base, count, nbytes, name),
        )


def insert_block(connection: sqlite3.Connection, block: Block) -> None:
    """Add a row to the table of blocks."""
    connection.execute(
        "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            block.base, block.count, block.first, block.last, block.run, block.crc,
            block.names, block.runs, block.lengths, block.headers, block.payloads,
        ),
    )  # fmt: skip
