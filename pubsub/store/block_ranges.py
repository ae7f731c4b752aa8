"""Ranges of the durable history: whole blocks of it, by offset and by time, and what is in them.

Synchronous, as ``reader``. Where that cuts pages for one subscriber, this leaves blocks as they
are, for whoever takes them in columns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from pubsub.store.block import RUN, Block, Damaged, decode_block
from pubsub.store.block_reader import SCAN, bases, read_block, read_bounds, snapshot, topics_left
from pubsub.store.retention import FORGOTTEN

Topics = dict[str, tuple[int, int]]
"""By name: how many messages there are, and how many bytes of payload."""

Piece = tuple[Block, frozenset[str]]
"""A block, and the topics whose messages in it are meant."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Blocks that hold the messages from ``start`` to before ``stop``, in order.

    Topics that are not meant were not asked for, or have expired. A block may reach beyond the
    range. ``damaged`` is a range of offsets (start, stop) after the last block that cannot be
    read; ``first`` the smallest offset there was anywhere.
    """

    start: int
    stop: int
    first: int
    blocks: tuple[Piece, ...] = ()
    damaged: tuple[int, int] | None = None

    def of(self, wanted: Callable[[str], bool]) -> Parcel:
        """Of these topics those that are ``wanted``."""
        kept = [(block, frozenset(filter(wanted, names))) for block, names in self.blocks]
        return replace(self, blocks=tuple([piece for piece in kept if piece[1]]))


def read_parcel(
    connection: sqlite3.Connection,
    start: int,
    stop: int,
    topics: frozenset[str] | None,
    max_bytes: int,
) -> Parcel:
    """The beginning of a range: blocks with about ``max_bytes`` of payload, but at least one.

    ``topics`` as in IStore's ``read``. Raises sqlite3.Error if not even the index can be read.
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
        # Where the blocks looked at are not all there are, the next parcel begins with the next.
        reached = listed.pop() if len(listed) > SCAN else end
        for base in listed:
            if base >= end:
                break
            if room <= 0 and found:
                return Parcel(start, at, first, tuple(found))
            left = topics_left(connection, base)
            names = left if topics is None else left & topics
            if not names and not _doubtful(left):
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


def _doubtful(names: frozenset[str]) -> bool:
    """Could a block that holds these have held anything, as far as the index says?"""
    return not names or any(name.startswith(FORGOTTEN) for name in names)


def offset_at(connection: sqlite3.Connection, timestamp: int) -> int:
    """The offset of the first message of ``timestamp`` (µs since the Unix epoch) or later.

    The one after the last if there is none. Raises sqlite3.Error.
    """
    with snapshot(connection):
        first, stop = read_bounds(connection)
        begins = connection.execute(
            "SELECT DISTINCT begins FROM epochs WHERE begins < ? ORDER BY begins", (stop,)
        )
        # Within an epoch time does not go backward; from one to the next a clock may be set.
        for low, high in pairwise([*[begin for (begin,) in begins], stop]):
            base = None if high <= first else _block_at(connection, low, high, timestamp)
            if base is not None:
                return _message_at(connection, base, timestamp)
        return stop


def _block_at(connection: sqlite3.Connection, low: int, high: int, timestamp: int) -> int | None:
    """The first of the blocks from ``low`` to ``high`` with a message of ``timestamp`` or later."""
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
            # Between the middle and the best so far there is no other.
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
        # Reading from there on tells of it.
        return base
    stamps = (
        base + start
        for start, _, _, _, _, _, stamp, _ in RUN.iter_unpack(block.runs)
        if stamp >= timestamp
    )
    return next(stamps, block.stop)


def topics_in(connection: sqlite3.Connection, start: int, stop: int) -> Topics:
    """The topics that have messages from ``start`` to before ``stop``; raises sqlite3.Error."""
    with snapshot(connection):
        first, end = read_bounds(connection)
        start, stop = max(start, first), min(stop, end)
        edges = _edges(connection, start, stop)
        low, high = start, stop
        found: Topics = {}
        for block in edges:
            names = topics_left(connection, block.base)
            _add(found, _tally(block, names, start, stop))
            # What is between the edges is in the index.
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
    """The blocks that are partly within a range, one or two of them if they can be read."""
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


def _tally(
    block: Block, names: frozenset[str], start: int, stop: int
) -> Iterator[tuple[str, int, int]]:
    for run in decode_block(block, names):
        low, high = max(start - run.offset, 0), min(stop - run.offset, run.count)
        if high > low:
            nbytes = (high - low) * run.size if run.lengths is None else sum(run.lengths[low:high])
            yield run.topic, high - low, nbytes


def add_topics(totals: Topics, more: Topics) -> Topics:
    """``totals``, to which ``more`` has been added."""
    _add(totals, [(name, *sums) for name, sums in more.items()])
    return totals


def _add(totals: Topics, more: Iterable[tuple[str, int, int]]) -> None:
    for name, count, nbytes in more:
        messages, size = totals.get(name, (0, 0))
        totals[name] = (messages + count, size + nbytes)


def epochs(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Every epoch's name and the offset it began at, the current one last; see ``begin_epoch``."""
    rows = connection.execute("SELECT number, mark, begins FROM epochs ORDER BY number")
    return [(f"{number}-{mark:08x}", begins) for number, mark, begins in rows]


def continues(known: list[tuple[str, int]], epoch: str, offset: int) -> bool:
    """Is a position that was taken in ``epoch`` good in a log with these epochs?"""
    for index, (name, _) in enumerate(known):
        if name == epoch:
            return index + 1 == len(known) or offset <= known[index + 1][1]
    return False
