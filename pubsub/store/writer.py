"""Writing the durable history: group commits, and what keeps the file in shape between them.

All of it runs in one thread of its own, on the one connection that writes.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pubsub.interfaces import Value
from pubsub.store.block import (
    Block,
    Builder,
    Damaged,
    add_topics,
    decode_block,
    encode_block,
    join_blocks,
    topics_of,
)
from pubsub.store.mark import Mark
from pubsub.store.merge import Merger, insert_block, insert_contents, replace_blocks
from pubsub.store.ranges import Topics
from pubsub.store.reader import read_block
from pubsub.store.retention import FORGOTTEN, MICROSECONDS, Retention
from pubsub.store.runs import DATA, LAST, OFFSET, Kept
from pubsub.store.schema import NEXT, PAGE_BYTES, open_writer

# Payload bytes of a block: larger ones would make every read of a few messages dear.
BLOCK_BYTES = 256 * 1024
# With their overhead, of those that are written anew for each commit: less than a page.
TAIL_BYTES = 16 * 1024
# As many of those become one block, while what is in them is still at hand.
TAILS = 16
# Pages of the file that may be free before it is made smaller, and how many go in a step.
_FREE_PAGES = 4096
_VACUUM_PAGES = 256


@dataclass(slots=True, eq=False)
class Group:
    """What is committed together. ``puts`` has what is kept by table and key, None to keep it
    no more; ``forgotten`` the topics that ended, and the offset at which they did; ``waiting`` is
    for the thread that gathers."""

    runs: list[Kept] = field(default_factory=list)
    puts: dict[tuple[str, str], Value | None] = field(default_factory=dict)
    forgotten: list[tuple[str, int]] = field(default_factory=list)
    nbytes: int = 0
    waiting: list[Callable[[bool], None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.puts or self.forgotten)

    @property
    def few(self) -> bool:
        """Is it no more than some messages?"""
        return self.nbytes <= TAIL_BYTES and not (self.puts or self.forgotten)

    def split(self) -> list[Sequence[Kept]]:
        """The runs, a block's worth at a time; none goes on beyond where a topic ended."""
        ends = {offset for _, offset in self.forgotten}
        parts: list[Sequence[Kept]] = []
        start = size = 0
        for index, run in enumerate(self.runs, 1):
            size += len(run[DATA])
            if size >= BLOCK_BYTES or index == len(self.runs) or run[LAST] + 1 in ends:
                parts.append(self.runs[start:index])
                start, size = index, 0
        return parts


class Tail:
    """The block at the end of the log, which small commits write anew with what they add.

    It costs a commit the same pages as a block of its own would, and spares the merging of many.
    """

    def __init__(self, run: int, base: int) -> None:
        self._builder = Builder(run, base)
        self.nbytes = 0
        self.totals: Topics = {}
        self.block: Block

    def add(self, group: Group, totals: Topics) -> None:
        """Go on with the messages of ``group``, so many of each topic."""
        self._builder.add(group.runs)
        self.block = self._builder.block(group.runs[-1][LAST] + 1)
        self.nbytes += group.nbytes
        self.totals = add_topics((self.totals, totals)) if self.totals else totals


class Writer:
    """The file at ``path``, written. ``run`` is the broker's run that message ids come from."""

    def __init__(self, path: Path, run: int, retention: Retention) -> None:
        self._connection = open_writer(path)
        self.mark = Mark(path)
        self._run = run
        self._retention = retention
        # µs. The second merges what the first has made, once that is over for a stretch.
        self._mergers = (Merger(5_000_000, 60_000_000), Merger(120_000_000, 600_000_000))
        self._topics: dict[str, int] = {}
        # The last blocks of the log: full ones to be joined, and the one that is not full.
        self._tails: list[Tail] = []
        # What a crash has left there is to be carried over as well.
        self.unsaved = _size(Path(f"{path}-wal"))
        """About so many bytes are in SQLite's log and not in the file yet."""

    @property
    def connection(self) -> sqlite3.Connection:
        """For what is done before the thread starts."""
        return self._connection

    # Commits

    def commit(self, group: Group) -> None:
        """Write ``group`` and wait for the disk; raises sqlite3.Error, having written nothing."""
        totals = topics_of(group.runs)
        # Of use only if this goes well.
        tails, self._tails = self._tails, []
        if group.few and self._topics.keys() >= totals.keys():
            self._commit_few(group, totals, tails)
        else:
            self._commit_all(group)
        if group.runs:
            self.mark.write(group.runs[-1][LAST] + 1)
        # The columns, the page around them, and of the index one by block and one for each topic.
        self.unsaved += group.nbytes + (2 + len(totals)) * PAGE_BYTES

    def _commit_few(self, group: Group, totals: Topics, tails: list[Tail]) -> None:
        if not tails or tails[-1].nbytes + group.nbytes > TAIL_BYTES:
            tails.append(Tail(self._run, group.runs[0][OFFSET]))
        tails[-1].add(group, totals)
        if len(tails) <= TAILS:
            self._write(tails[-1])
        else:
            with self._transaction():
                self._join(tails[:-1])
                self._write(tails[-1])
            del tails[:-1]
        self._added(totals)
        self._tails = tails

    def _join(self, tails: Sequence[Tail]) -> None:
        """One block in the place of full ones, which need not be read for that yet."""
        sums = add_topics(tail.totals for tail in tails)
        merged = join_blocks([tail.block for tail in tails])
        replace_blocks(self._connection, merged, self._numbered(sums))
        self._retention.moved(merged.base)
        self.unsaved += len(merged.payloads)

    def _write(self, tail: Tail) -> None:
        """By itself, a statement is a transaction."""
        topics = json.dumps(self._numbered(tail.totals))
        self._connection.execute(
            "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*tail.block.row, topics),
        )

    def _commit_all(self, group: Group) -> None:
        parts = group.split()
        blocks = [encode_block(p, self._run, p[0][OFFSET], p[-1][LAST] + 1) for p in parts]
        puts = {key: value() if callable(value) else value for key, value in group.puts.items()}
        with self._transaction():
            forgotten = deque(group.forgotten)
            for block, part in zip(blocks, parts, strict=True):
                while forgotten and forgotten[0][1] <= block.base:
                    self._forget(forgotten.popleft()[0])
                totals = topics_of(part)
                insert_block(self._connection, block)
                insert_contents(self._connection, block.base, self._numbered(totals))
                self._added(totals)
            for name, _ in forgotten:
                self._forget(name)
            for (space, key), value in puts.items():
                self._put(space, key, value)

    def _numbered(self, topics: Topics) -> list[tuple[int, int, int]]:
        return [(self._topic(name), count, nbytes) for name, (count, nbytes) in topics.items()]

    def _added(self, topics: Topics) -> None:
        for name, (count, nbytes) in topics.items():
            self._retention.added(self._topic(name), name, count, nbytes)

    def _forget(self, name: str) -> None:
        """A topic of the same name will be another one; what is left of this one expires."""
        topic = self._topic(name)
        self._connection.execute(
            "UPDATE topics SET name = ? WHERE id = ?", (f"{FORGOTTEN}{topic}", topic)
        )
        del self._topics[name]
        self._retention.ended(self._connection, topic)

    def _topic(self, name: str) -> int:
        topic = self._topics.get(name)
        if topic is None:
            self._connection.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (name,))
            (topic,) = self._connection.execute(
                "SELECT id FROM topics WHERE name = ?", (name,)
            ).fetchone()
            self._topics[name] = topic
        return topic

    def _put(self, space: str, key: str, value: bytes | None) -> None:
        if value is None:
            self._connection.execute(
                "DELETE FROM metadata WHERE space = ? AND key = ?", (space, key)
            )
        else:
            self._connection.execute(
                "INSERT OR REPLACE INTO metadata VALUES (?, ?, ?)", (space, key, value)
            )

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection, self._rolled_back)

    def _rolled_back(self) -> None:
        # What was learnt in the transaction does not hold.
        self._topics.clear()
        self._retention.reset()

    # Housekeeping, in steps of some milliseconds

    def checkpoint(self) -> None:
        """Carry what was committed over into the file."""
        self.unsaved = 0
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def tidy(self) -> tuple[int, bool]:
        """One step: expire, merge, give space back.

        Returns the first offset there is, and whether there is more to do. Raises sqlite3.Error.
        """
        # What is settled is not written anew any more.
        self._tails = []
        # Nobody waits for it to be on disk: the next commit sees to that.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._transaction():
                now = int(time.time() * MICROSECONDS)
                touched, expiring = self._retention.expired(self._connection, now)
                if touched:
                    self._note_next()
                for base in touched:
                    self._shrink(base)
                merging = bool(touched) or self._merge(now)
        finally:
            self._connection.execute("PRAGMA synchronous = FULL")
        self.unsaved += PAGE_BYTES * (len(touched) + 1)
        vacuuming = not expiring and self._vacuum()
        (first,) = self._connection.execute(
            "SELECT coalesce((SELECT base FROM blocks ORDER BY base LIMIT 1), next) FROM state"
        ).fetchone()
        return first, expiring or merging or vacuuming

    def _note_next(self) -> None:
        """The last block may go, and with it what says where the log goes on."""
        self._connection.execute(f"UPDATE state SET next = ({NEXT})")

    def _merge(self, now: int) -> bool:
        for merger in self._mergers:
            base, more = merger.step(self._connection, now)
            if base is not None:
                self._retention.moved(base)
                self.unsaved += BLOCK_BYTES
            if more:
                return True
        return False

    def _shrink(self, base: int) -> None:
        """Some of a block has expired: delete it if that was all, or write it anew without."""
        rows = self._connection.execute(
            "SELECT name, bytes FROM contents JOIN topics ON id = topic WHERE base = ?", (base,)
        ).fetchall()
        if not rows:
            self._connection.execute("DELETE FROM blocks WHERE base = ?", (base,))
            return
        (size,) = self._connection.execute(
            "SELECT length(payloads) FROM blocks WHERE base = ?", (base,)
        ).fetchone()
        if 2 * sum(nbytes for _, nbytes in rows) < size:
            try:
                block = read_block(self._connection, base)
            except Damaged:
                # Left as it is, to be reported when it is read.
                return
            left = decode_block(block, frozenset(name for name, _ in rows))
            runs = [run.kept() for run in left]
            smaller = encode_block(runs, block.run, block.base, block.stop)
            self._connection.execute("DELETE FROM blocks WHERE base = ?", (base,))
            insert_block(self._connection, smaller)

    def _vacuum(self) -> bool:
        (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        if free < _FREE_PAGES or free * 4 < pages:
            return False
        self._connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
        self.unsaved += PAGE_BYTES * _VACUUM_PAGES
        return True

    def close(self) -> None:
        """Note that all is in order, and close."""
        try:
            self._note_next()
            self._connection.execute("UPDATE state SET clean = 1")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._connection.close()
            self.mark.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Transaction:
    """Commits at the end, or undoes everything and calls ``undone``."""

    def __init__(self, connection: sqlite3.Connection, undone: Callable[[], None]) -> None:
        self._connection = connection
        self._undone = undone

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        committed = False
        try:
            if error is None:
                self._connection.execute("COMMIT")
                committed = True
        finally:
            if not committed:
                self._undone()
                # Errors may have ended it, that of the commit too.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
