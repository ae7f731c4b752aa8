"""Ranges of the durable history: whole blocks by offset and by time, and their topics.

Synchronous, as ``block_reader.py``. While that cuts pages for one subscriber, this returns whole
blocks, for readers that use columns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

from pubsub.store.block import Block, Damaged, decode_block
from pubsub.store.block_reader import SCAN, bases, indexed_topics, read_block, read_bounds, snapshot
from pubsub.store.columns import RUN
from pubsub.store.parcel import Parcel, Piece, TopicCounts
from pubsub.store.retention import FORGOTTEN


def read_parcel(
    connection: sqlite3.Connection,
    start: int,
    stop: int,
    topics: frozenset[str] | None,
    max_bytes: int,
) -> Parcel:
    """Return the start of a range: blocks with about ``max_bytes`` of payload, at least one.

    ``topics`` is as in ``IStore.read``. Raises sqlite3.Error if the index cannot be read.
    """
    with snapshot(connection):
        first, end = read_bounds(connection)
        start, end = max(start, first), min(stop, end)
        if start >= end:
            return Parcel(start, start, first)
        found: list[Piece] = []
        room = max_bytes
        at = start
        listed = list(islice(bases(connection, start, topics), SCAN + 1))
        # If there are more blocks than one read examines, the next parcel begins with the next one.
        reached = listed.pop() if len(listed) > SCAN else end
        for base in listed:
            if base >= end:
                break
            if room <= 0 and found:
                return Parcel(start, at, first, tuple(found))
            indexed = indexed_topics(connection, base)
            names = indexed if topics is None else indexed & topics
            if not names and not _may_be_lost(indexed):
                continue
            try:
                block = read_block(connection, base)
            except Damaged as damage:
                if damage.stop <= start:
                    continue
                broken = (max(base, start), min(damage.stop, end))
                return Parcel(start, broken[1], first, tuple(found), broken)
            if block.stop <= start or not names:
                continue
            found.append((block, names))
            room -= len(block.payloads)
            at = min(block.stop, end)
        return Parcel(start, max(start, min(reached, end)), first, tuple(found))


def _may_be_lost(names: frozenset[str]) -> bool:
    """Return whether a block with these topics in the index may be damaged or lost."""
    return not names or any(name.startswith(FORGOTTEN) for name in names)


def offset_at(connection: sqlite3.Connection, timestamp: int) -> int:
    """Return the offset of the first message at or after ``timestamp`` (µs since the Unix epoch).

    The offset after the last message if there is none. Raises sqlite3.Error.
    """
    with snapshot(connection):
        first, stop = read_bounds(connection)
        begins = connection.execute(
            "SELECT DISTINCT begins FROM epochs WHERE begins < ? ORDER BY begins", (stop,)
        )
        # Timestamps do not decrease within an epoch. Between two epochs the clock may be set back.
        for low, high in pairwise([*[begin for (begin,) in begins], stop]):
            base = None if high <= first else _block_at(connection, low, high, timestamp)
            if base is not None:
                return _message_at(connection, base, timestamp)
        return stop


def _block_at(connection: sqlite3.Connection, low: int, high: int, timestamp: int) -> int | None:
    """Return the first block of a range that has messages at or after ``timestamp``."""
    found = _last_before(connection, low, high)
    if found is None or found[1] < timestamp:
        return None
    (high, _) = found
    while low < high:
        middle = (low + high) // 2
        base, last = connection.execute(
            "SELECT base, last FROM blocks WHERE base >= ? ORDER BY base LIMIT 1", (middle,)
        ).fetchone()
        if last < timestamp:
            low = base + 1
        elif base < high:
            high = base
        else:
            # There is no block between the middle and the best so far.
            before = _last_before(connection, low, middle)
            if before is None or before[1] < timestamp:
                return high
            high = before[0]
    return high


def _last_before(connection: sqlite3.Connection, low: int, high: int) -> tuple[int, int] | None:
    row: tuple[int, int] | None = connection.execute(
        "SELECT base, last FROM blocks WHERE base >= ? AND base < ? ORDER BY base DESC LIMIT 1",
        (low, high),
    ).fetchone()
    return row


def _message_at(connection: sqlite3.Connection, base: int, timestamp: int) -> int:
    try:
        block = read_block(connection, base)
    except Damaged:
        # A reader that continues from there gets the damage reported.
        return base
    stamps = (
        base + start
        for start, _, _, _, _, _, stamp, _ in RUN.iter_unpack(block.runs)
        if stamp >= timestamp
    )
    return next(stamps, block.stop)


def topics_in(connection: sqlite3.Connection, start: int, stop: int) -> TopicCounts:
    """Return the topics that have messages from ``start`` to before ``stop``.

    Raises sqlite3.Error.
    """
    with snapshot(connection):
        first, end = read_bounds(connection)
        start, stop = max(start, first), min(stop, end)
        edges = _edges(connection, start, stop)
        low, high = start, stop
        found: TopicCounts = {}
        for block in edges:
            names = indexed_topics(connection, block.base)
            _add(found, _count_range(block, names, start, stop))
            # The blocks between the edges are counted by the index.
            if block.base < start:
                low = max(low, block.stop)
            else:
                high = min(high, block.base)
        rows = connection.execute(
            "SELECT name, sum(count), sum(bytes) FROM contents JOIN topics ON id = topic "
            "WHERE base >= ? AND base < ? GROUP BY name",
            (low, high),
        )
        _add(found, [(name, *sums) for name, *sums in rows if not name.startswith(FORGOTTEN)])
        return found


def _edges(connection: sqlite3.Connection, start: int, stop: int) -> Iterator[Block]:
    """Yield the blocks that are partly within a range: at most two, without damaged ones."""
    seen = -1
    for offset in (start, stop):
        row = connection.execute(
            "SELECT base FROM blocks WHERE base < ? ORDER BY base DESC LIMIT 1", (offset,)
        ).fetchone()
        if row is None or row[0] == seen or start >= stop:
            continue
        seen = row[0]
        try:
            block = read_block(connection, seen)
        except Damaged:
            continue
        if block.stop > offset:
            yield block


def _count_range(
    block: Block, names: frozenset[str], start: int, stop: int
) -> Iterator[tuple[str, int, int]]:
    for run in decode_block(block, names):
        low, high = max(start - run.offset, 0), min(stop - run.offset, run.count)
        if high > low:
            yield run.topic, high - low, run.messages_nbytes(low, high)


def _add(totals: TopicCounts, more: Iterable[tuple[str, int, int]]) -> None:
    for name, count, nbytes in more:
        messages, size = totals.get(name, (0, 0))
        totals[name] = (messages + count, size + nbytes)


def epochs(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return each epoch's name and first offset, the current epoch last (see ``begin_epoch``)."""
    rows = connection.execute("SELECT number, mark, begins FROM epochs ORDER BY number")
    return [(f"{number}-{mark:08x}", begins) for number, mark, begins in rows]
