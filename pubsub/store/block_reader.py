"""Reading the durable history: pages of blocks, and what of them cannot be read.

Synchronous, on a connection of its own: the broker calls it in threads, other processes as they
like. Nothing here keeps the writer waiting.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import islice

from pubsub.broker.batch import Batch, Page
from pubsub.store.block import Block, Damaged, decode_block
from pubsub.store.retention import FORGOTTEN, LOST
from pubsub.store.schema import NEXT

SCAN = 256
"""Blocks one read looks at, so that a rare topic does not keep a thread for long."""
# Topics that are looked up in the index; of more, every block is looked at.
_INDEXED = 64
_MOST = 2**63 - 1
# Each of the two names every block; where one does not, it is damaged.
_BASES = (
    "SELECT base FROM blocks WHERE base >= ? AND base < ? "
    "UNION SELECT base FROM contents WHERE base >= ? AND base < ? ORDER BY base"
)
COLUMNS = "base, count, first, last, run, crc, names, runs, lengths, headers, payloads"


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything read meanwhile is of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def read_bounds(connection: sqlite3.Connection) -> tuple[int, int]:
    """The first offset that can be read, and the one after the last."""
    (stop,) = connection.execute(NEXT).fetchone()
    row = connection.execute("SELECT base FROM blocks ORDER BY base LIMIT 1").fetchone()
    return (stop if row is None else row[0]), stop


def read_page(
    connection: sqlite3.Connection, offset: int, topics: frozenset[str] | None, max_bytes: int
) -> Page:
    """As IStore's ``read``; raises sqlite3.Error if not even the index can be read."""
    with snapshot(connection):
        first, stop = read_bounds(connection)
        return _Reading(connection, max(offset, first), stop, topics, max_bytes).page()


class _Reading:
    """One page in the making."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        offset: int,
        stop: int,
        topics: frozenset[str] | None,
        max_bytes: int,
    ) -> None:
        self._connection = connection
        self._offset = offset
        self._stop = stop
        self._topics = topics
        self._room = max_bytes
        self._batches: list[Batch] = []
        self._damaged: list[tuple[int, int]] = []

    def page(self) -> Page:
        """What there is, and how far it goes."""
        listed = list(islice(bases(self._connection, self._offset, self._topics), SCAN + 1))
        # Where the blocks looked at are not all there are, the next page begins with the next.
        end = listed.pop() if len(listed) > SCAN else self._stop
        for base in listed:
            try:
                self._take(read_block(self._connection, base))
            except Damaged as damage:
                # Of the block before the first, nothing may be asked for any more.
                if damage.stop > self._offset:
                    self._damaged.append((max(damage.base, self._offset), damage.stop))
                    self._offset = damage.stop
            if self._room <= 0:
                end = self._offset
                break
        return Page(self._batches, max(end, self._offset), tuple(self._damaged))

    def _take(self, block: Block) -> None:
        allowed = self._allowed(block.base)
        for run in decode_block(block, allowed):
            if run.last < self._offset:
                continue
            if self._room <= 0:
                return
            self._batches.append(run.batch(self._offset))
            self._room -= run.cost()
            self._offset = run.last + 1
        self._offset = max(self._offset, block.stop)

    def _allowed(self, base: int) -> frozenset[str]:
        """The topics whose messages in a block have not expired, of those asked for."""
        left = topics_left(self._connection, base)
        return left if self._topics is None else left & self._topics


def bases(
    connection: sqlite3.Connection, offset: int, topics: frozenset[str] | None
) -> Iterator[int]:
    """The blocks to look at for ``topics``, from the one that holds ``offset`` on.

    No more than SCAN + 1.
    """
    row = connection.execute(
        "SELECT base FROM blocks WHERE base <= ? ORDER BY base DESC LIMIT 1", (offset,)
    ).fetchone()
    start = offset if row is None else row[0]
    if topics is None or len(topics) > _INDEXED:
        for (base,) in connection.execute(
            f"{_BASES} LIMIT ?", (start, _MOST, start, _MOST, SCAN + 1)
        ):
            yield base
        return
    last = -1
    # What is lost may have been anybody's.
    for base in merge(*[_bases_of(connection, name, start) for name in (*topics, LOST)]):
        if base != last:
            yield base
        last = base


def _bases_of(connection: sqlite3.Connection, name: str, start: int) -> Iterator[int]:
    rows = connection.execute(
        "SELECT base FROM contents WHERE topic = (SELECT id FROM topics WHERE name = ?) "
        "AND base >= ? ORDER BY base LIMIT ?",
        (name, start, SCAN + 1),
    )
    return (base for (base,) in rows)


def topics_left(connection: sqlite3.Connection, base: int) -> frozenset[str]:
    """The topics of the block at ``base`` whose messages have not expired."""
    rows = connection.execute(
        "SELECT name FROM contents JOIN topics ON id = topic WHERE base = ?", (base,)
    )
    return frozenset(name for (name,) in rows)


def read_block(connection: sqlite3.Connection, base: int) -> Block:
    """The block that begins at ``base``, checked; raises Damaged."""
    try:
        row = connection.execute(f"SELECT {COLUMNS} FROM blocks WHERE base = ?", (base,)).fetchone()
    except sqlite3.DatabaseError as error:
        raise Damaged(base, _stop_of(connection, base), str(error)) from None
    if row is None:
        raise Damaged(base, _stop_of(connection, base), "the block is missing")
    block = Block(*row)
    try:
        block.check()
    except TypeError:
        raise Damaged(base, _stop_of(connection, base), "a column is missing") from None
    rows = connection.execute(
        "SELECT name FROM contents LEFT JOIN topics ON id = topic WHERE base = ?", (base,)
    )
    if not fits(block, [name for (name,) in rows]):
        raise Damaged(base, block.stop, "the index says otherwise")
    return block


def fits(block: Block, names: Sequence[str | None]) -> bool:
    """Is what the index has of ``block`` some of what is in it?"""
    known = [name for name in names if name is not None]
    listed = [name for name in known if not name.startswith(FORGOTTEN)]
    return bool(names) and len(known) == len(names) and block.holds(listed)


def _stop_of(connection: sqlite3.Connection, base: int) -> int:
    """Where the block after the one at ``base`` begins, by the index."""
    row = connection.execute(
        "SELECT base FROM contents WHERE base > ? ORDER BY base LIMIT 1", (base,)
    ).fetchone()
    if row is None:
        row = connection.execute(NEXT).fetchone()
    stop: int = row[0]
    return stop


def tail_of(connection: sqlite3.Connection, blocks: int) -> tuple[int, int]:
    """The offsets from which on there are so many blocks, and where they end."""
    first, stop = read_bounds(connection)
    row = connection.execute(
        "SELECT base FROM blocks ORDER BY base DESC LIMIT 1 OFFSET ?", (blocks - 1,)
    ).fetchone()
    return (first if row is None else row[0]), stop


def check_blocks(
    connection: sqlite3.Connection, start: int, stop: int, limit: int
) -> tuple[list[Damaged], int]:
    """What is damaged from ``start`` to ``stop``, looking at ``limit`` blocks at most.

    Returns the damage and where to go on: ``stop`` at the end. Raises sqlite3.Error.
    """
    damage: list[Damaged] = []
    with snapshot(connection):
        rows = connection.execute(
            f"{_BASES} LIMIT ?", (start, stop, start, stop, limit + 1)
        ).fetchall()
        for (base,) in rows[:limit]:
            try:
                read_block(connection, base)
            except Damaged as found:
                damage.append(found)
    return damage, rows[limit][0] if len(rows) > limit else stop
