"""Reading blocks of the durable history: pages, and the ranges that cannot be read.

Synchronous, on a connection of its own. The broker calls it in threads; other processes can call
it too. The writer never waits for a reader.
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
"""Blocks that one read examines, so that a rare topic does not keep a thread for long."""
# The largest number of topics that are looked up in the index; for more, every block is read.
_INDEXED = 64
_MOST = 2**63 - 1
# Both tables have every block. A block that is missing from one of them is damaged.
_BASES = (
    "SELECT base FROM blocks WHERE base >= ? AND base < ? "
    "UNION SELECT base FROM contents WHERE base >= ? AND base < ? ORDER BY base"
)
COLUMNS = "base, count, first, last, run, crc, names, runs, lengths, headers, payloads"


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """A context in which all reads see the same commits."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def read_bounds(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the first offset, and the offset after the last message."""
    (stop,) = connection.execute(NEXT).fetchone()
    row = connection.execute("SELECT base FROM blocks ORDER BY base LIMIT 1").fetchone()
    return (stop if row is None else row[0]), stop


def read_last_timestamp(connection: sqlite3.Connection) -> int:
    """Return the timestamp of the last message, in µs; 0 if there is none."""
    # A range that was lost has the time at which that was noticed, and no checksum.
    row = connection.execute(
        "SELECT last FROM blocks WHERE crc >= 0 ORDER BY base DESC LIMIT 1"
    ).fetchone()
    return 0 if row is None else int(row[0])


def read_page(
    connection: sqlite3.Connection, offset: int, topics: frozenset[str] | None, max_bytes: int
) -> Page:
    """As ``IStore.read``; raises sqlite3.Error if the index cannot be read."""
    with snapshot(connection):
        first, stop = read_bounds(connection)
        return _PageReader(connection, max(offset, first), stop, topics, max_bytes).page()


class _PageReader:
    """Reads one page."""

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
        """Return the page."""
        listed = list(islice(bases(self._connection, self._offset, self._topics), SCAN + 1))
        # If there are more blocks than one read examines, the next page begins with the next one.
        end = listed.pop() if len(listed) > SCAN else self._stop
        for base in listed:
            try:
                self._take(read_block(self._connection, base))
            except Damaged as damage:
                # The damaged block may end before the offset that was requested.
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
        """Return the requested topics whose messages in a block have not expired."""
        indexed = indexed_topics(self._connection, base)
        return indexed if self._topics is None else indexed & self._topics


def bases(
    connection: sqlite3.Connection, offset: int, topics: frozenset[str] | None
) -> Iterator[int]:
    """Yield the bases of the blocks to read for ``topics``, from the one with ``offset`` on.

    At most SCAN + 1.
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
    # Lost messages may have been of any topic.
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


def indexed_topics(connection: sqlite3.Connection, base: int) -> frozenset[str]:
    """Return the topics of the block at ``base`` whose messages have not expired."""
    rows = connection.execute(
        "SELECT name FROM contents JOIN topics ON id = topic WHERE base = ?", (base,)
    )
    return frozenset(name for (name,) in rows)


def read_block(connection: sqlite3.Connection, base: int) -> Block:
    """Return the block that begins at ``base``, checked; raises Damaged."""
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
    if not matches_index(block, [name for (name,) in rows]):
        raise Damaged(base, block.stop, "the index does not match")
    return block


def matches_index(block: Block, names: Sequence[str | None]) -> bool:
    """Return whether all ``names`` that the index has for ``block`` are topics of it."""
    known = [name for name in names if name is not None]
    listed = [name for name in known if not name.startswith(FORGOTTEN)]
    return bool(names) and len(known) == len(names) and block.holds(listed)


def _stop_of(connection: sqlite3.Connection, base: int) -> int:
    """Return the base of the next block, according to the index."""
    row = connection.execute(
        "SELECT base FROM contents WHERE base > ? ORDER BY base LIMIT 1", (base,)
    ).fetchone()
    if row is None:
        row = connection.execute(NEXT).fetchone()
    stop: int = row[0]
    return stop


def tail_of(connection: sqlite3.Connection, blocks: int) -> tuple[int, int]:
    """Return the range of offsets of the last ``blocks`` blocks."""
    first, stop = read_bounds(connection)
    row = connection.execute(
        "SELECT base FROM blocks ORDER BY base DESC LIMIT 1 OFFSET ?", (blocks - 1,)
    ).fetchone()
    return (first if row is None else row[0]), stop


def check_blocks(
    connection: sqlite3.Connection, start: int, stop: int, limit: int
) -> tuple[list[Damaged], int]:
    """Check blocks from ``start`` to before ``stop``, at most ``limit`` of them.

    Returns the damage, and the offset where to continue: ``stop`` at the end. Raises sqlite3.Error.
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
