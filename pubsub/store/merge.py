"""Merging: small neighbouring blocks become one larger block, a step at a time.

A commit may have to wait for a step, so a step merges a few blocks and takes a millisecond or two.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pubsub.store.block import Block, Damaged, decode_block, encode_block, join_blocks
from pubsub.store.block_reader import COLUMNS, matches_index
from pubsub.store.columns import RUN
from pubsub.store.stored_runs import RunRecord

# Limits of a merged block: payload bytes, and runs, which take most of the time.
_BYTES = 256 * 1024
_RUNS = 512
# Limits of the number of blocks that one step merges, and the number that it examines.
_FEWEST = 8
_MOST = 16
_STEP = 24
# µs: the largest time span of a merged block, as the messages of a block expire together.
_SPAN = 600_000_000


class _Row(NamedTuple):
    """The properties of a block that merging depends on; ``runs`` is the bytes of that column."""

    base: int
    nbytes: int
    runs: int
    first: int
    last: int
    run: int


class Merger:
    """Moves along the log; each ``step`` merges the next group of small neighbours.

    Blocks younger than ``min_age`` µs are not merged. A group at the end of the log, which may
    still grow, is merged when it is ``tail_age`` µs old.
    """

    def __init__(self, min_age: int, tail_age: int) -> None:
        self._min_age = min_age
        self._tail_age = tail_age
        self._cursor = -1

    def step(self, connection: sqlite3.Connection, now: int) -> tuple[int | None, bool]:
        """Merge within a transaction.

        Returns the base of the merged block, if any, and whether there may be more to merge.
        """
        rows = self._rows(connection, now)
        start, stop = _next_group(rows)
        if stop - start < _FEWEST or (
            # At the end of the log, and not old enough.
            stop == len(rows) and rows[start].last >= now - self._tail_age
        ):
            # The group at the end may continue with later blocks.
            if start:
                self._cursor = rows[start - 1].base
            return None, start > 0 and len(rows) == _STEP
        self._cursor = rows[stop - 1].base
        try:
            _merge(connection, _read(connection, rows[start].base, rows[stop - 1].base))
        except Damaged:
            # The group is not merged. The damage is reported when the block is read.
            return None, True
        return rows[start].base, True

    def _rows(self, connection: sqlite3.Connection, now: int) -> list[_Row]:
        """Return the next blocks that are old enough."""
        cursor = connection.execute(
            "SELECT base, length(payloads), length(runs), first, last, run FROM blocks "
            "WHERE base > ? ORDER BY base LIMIT ?",
            (self._cursor, _STEP),
        )
        rows = []
        for values in cursor:
            row = _Row(*values)
            if row.last >= now - self._min_age:
                break
            rows.append(row)
        cursor.close()
        return rows


def _next_group(rows: list[_Row]) -> tuple[int, int]:
    """Return the range of the first group that has enough blocks, else of the last group."""
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
    """Return the blocks with bases from ``first`` to ``last``, checked; raises Damaged."""
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
    """Replace ``blocks`` by one block; raises Damaged."""
    span = (blocks[0].base, blocks[-1].stop)
    names: defaultdict[int, list[str | None]] = defaultdict(list)
    totals: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for base, topic, name, count, nbytes in connection.execute(
        "SELECT base, topic, name, count, bytes FROM contents LEFT JOIN topics ON id = topic "
        "WHERE base >= ? AND base < ?",
        span,
    ):
        names[base].append(name)
        before = totals[topic]
        totals[topic] = (before[0] + count, before[1] + nbytes)
    if names.keys() != {block.base for block in blocks}:
        raise Damaged(*span, "a block is missing")
    if not all(matches_index(block, names[block.base]) for block in blocks):
        raise Damaged(*span, "the index does not match")
    whole = all(block.topics() == set(names[block.base]) for block in blocks)
    merged = join_blocks(blocks) if whole else _without_expired(blocks, names)
    connection.execute("DELETE FROM contents WHERE base >= ? AND base < ?", span)
    connection.execute("DELETE FROM blocks WHERE base >= ? AND base < ?", span)
    insert_block(connection, merged)
    connection.executemany(
        "INSERT INTO contents VALUES (?, ?, ?, ?)",
        [(merged.base, topic, *sums) for topic, sums in totals.items()],
    )


def _without_expired(blocks: list[Block], names: Mapping[int, Iterable[str | None]]) -> Block:
    """Return one block of the topics that the index still has; ``names`` are by base."""
    records: list[RunRecord] = []
    for block in blocks:
        topics = frozenset(name for name in names[block.base] if name is not None)
        records += [run.record() for run in decode_block(block, topics)]
    return encode_block(records, blocks[0].run, blocks[0].base, blocks[-1].stop)


def insert_block(connection: sqlite3.Connection, block: Block) -> None:
    """Add a row to the table of blocks."""
    connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", block.row)
