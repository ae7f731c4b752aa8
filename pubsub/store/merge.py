"""Merging: many small blocks become few larger ones, a step at a time.

A commit may have to wait for a step, so a step is a few blocks and a millisecond or two.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pubsub.store.block import RUN, Block, Damaged, decode_block, encode_block, join_blocks
from pubsub.store.block_reader import COLUMNS, fits
from pubsub.store.stored_runs import Kept

# What a merged block has at the most, in payload bytes and in runs, which are what takes time.
_BYTES = 256 * 1024
_RUNS = 512
# Blocks that one step merges, and those that it looks at.
_FEWEST = 8
_MOST = 16
_STEP = 24
# µs: blocks of such a span stay apart, as they expire whole.
_SPAN = 600_000_000


class _Row(NamedTuple):
    """A block as far as merging goes."""

    base: int
    nbytes: int
    runs: int
    first: int
    last: int
    run: int


class Merger:
    """Walks along the log; ``step`` merges the next stretch of small neighbours.

    Blocks are left alone until they are ``settled`` µs old. At the end of the log a stretch is
    left to become longer until it is ``patience`` µs old.
    """

    def __init__(self, settled: int, patience: int) -> None:
        self._settled = settled
        self._patience = patience
        self._cursor = -1

    def step(self, connection: sqlite3.Connection, now: int) -> tuple[int | None, bool]:
        """Merge within a transaction.

        Returns the base of what was merged, and whether there may be more to merge.
        """
        rows = self._rows(connection, now)
        start, stop = _stretch(rows)
        if stop - start < _FEWEST or (
            # At the end of the log, and not old enough.
            stop == len(rows) and rows[start].last >= now - self._patience
        ):
            # What is at the end may go on with blocks that are still to come.
            if start:
                self._cursor = rows[start - 1].base
            return None, start > 0 and len(rows) == _STEP
        self._cursor = rows[stop - 1].base
        try:
            _merge(connection, _read(connection, rows[start].base, rows[stop - 1].base))
        except Damaged:
            # Left as it is, and so are its neighbours: it is reported when it is read.
            return None, True
        return rows[start].base, True

    def _rows(self, connection: sqlite3.Connection, now: int) -> list[_Row]:
        """The next blocks that have settled."""
        cursor = connection.execute(
            "SELECT base, length(payloads), length(runs), first, last, run FROM blocks "
            "WHERE base > ? ORDER BY base LIMIT ?",
            (self._cursor, _STEP),
        )
        rows = []
        for values in cursor:
            row = _Row(*values)
            if row.last >= now - self._settled:
                break
            rows.append(row)
        cursor.close()
        return rows


def _stretch(rows: list[_Row]) -> tuple[int, int]:
    """The first stretch of ``rows`` that is worth merging, else the last of all."""
    start = size = runs = 0
    for index, row in enumerate(rows):
        size += row.nbytes
        runs += row.runs
        first = rows[start]
        if (
            size > _BYTES
            or runs > _RUNS * RUN.size
            or index - start == _MOST
            or row.run != first.run
            or row.last - first.first > _SPAN
        ):
            if index - start >= _FEWEST:
                return start, index
            start, size, runs = index, row.nbytes, row.runs
            if size > _BYTES:
                start, size, runs = index + 1, 0, 0
    return min(start, len(rows)), len(rows)


def _read(connection: sqlite3.Connection, first: int, last: int) -> list[Block]:
    """The blocks from the one at ``first`` to that at ``last``; raises Damaged."""
    try:
        rows = connection.execute(
            f"SELECT {COLUMNS} FROM blocks WHERE base BETWEEN ? AND ? ORDER BY base", (first, last)
        )
        blocks = [Block(*row) for row in rows]
        for block in blocks:
            block.check()
    except (sqlite3.DatabaseError, TypeError) as error:
        raise Damaged(first, last, str(error)) from None
    return blocks


def _merge(connection: sqlite3.Connection, blocks: list[Block]) -> None:
    """Put one block in the place of ``blocks``; raises Damaged."""
    span = (blocks[0].base, blocks[-1].stop)
    left: defaultdict[int, list[str | None]] = defaultdict(list)
    totals: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for base, topic, name, count, nbytes in connection.execute(
        "SELECT base, topic, name, count, bytes FROM contents LEFT JOIN topics ON id = topic "
        "WHERE base >= ? AND base < ?",
        span,
    ):
        left[base].append(name)
        before = totals[topic]
        totals[topic] = (before[0] + count, before[1] + nbytes)
    if left.keys() != {block.base for block in blocks}:
        raise Damaged(*span, "a block is missing")
    if not all(fits(block, left[block.base]) for block in blocks):
        raise Damaged(*span, "the index says otherwise")
    whole = all(block.topics() == set(left[block.base]) for block in blocks)
    merged = join_blocks(blocks) if whole else _without_expired(blocks, left)
    connection.execute("DELETE FROM contents WHERE base >= ? AND base < ?", span)
    connection.execute("DELETE FROM blocks WHERE base >= ? AND base < ?", span)
    insert_block(connection, merged)
    connection.executemany(
        "INSERT INTO contents VALUES (?, ?, ?, ?)",
        [(merged.base, topic, *sums) for topic, sums in totals.items()],
    )


def _without_expired(blocks: list[Block], left: Mapping[int, Iterable[str | None]]) -> Block:
    runs: list[Kept] = []
    for block in blocks:
        names = frozenset(name for name in left[block.base] if name is not None)
        runs += [run.kept() for run in decode_block(block, names)]
    return encode_block(runs, blocks[0].run, blocks[0].base, blocks[-1].stop)


def insert_block(connection: sqlite3.Connection, block: Block) -> None:
    """Add a row to the table of blocks."""
    connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", block.row)
