"""Writing the durable history: group commits, and what keeps the file in shape between them.

What concerns the file runs in one thread of its own, on the one connection that writes; the
journal is written in another.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pubsub.interfaces import Value
from pubsub.store.block import Block, Damaged, decode_block, encode_block
from pubsub.store.block_reader import read_block
from pubsub.store.committed_position import Mark, insert_lost
from pubsub.store.journal import BLOCK_BYTES, Journal, Segment
from pubsub.store.merge import Merger, insert_block
from pubsub.store.retention import FORGOTTEN, MICROSECONDS, Retention
from pubsub.store.schema import NEXT, PAGE_BYTES, open_writer
from pubsub.store.stored_runs import DATA, LAST, OFFSET, Kept, topics_of

# Bytes with their overhead of a group that goes through the journal: a larger one is worth a
# transaction, and need not be written twice.
FEW_BYTES = 64 * 1024
# Pages of the file that may be free before it is made smaller, and how many go in a step.
_FREE_PAGES = 4096
_VACUUM_PAGES = 256


@dataclass(slots=True, eq=False)
class Group:
    """What is committed together. ``puts`` has what is kept by table and key, None to keep it
    no more; ``forgotten`` the topics that ended, and the offset at which they did; ``waiting`` is
    for the thread that gathers. ``direct`` has it go into the file at once, because the journal
    cannot take it."""

    runs: list[Kept] = field(default_factory=list)
    puts: dict[tuple[str, str], Value | None] = field(default_factory=dict)
    forgotten: list[tuple[str, int]] = field(default_factory=list)
    nbytes: int = 0
    waiting: list[Callable[[bool], None]] = field(default_factory=list)
    direct: bool = False

    def __bool__(self) -> bool:
        return bool(self.runs or self.puts or self.forgotten or self.direct)

    @property
    def few(self) -> bool:
        """Is it for the journal?"""
        return self.nbytes <= FEW_BYTES and not (self.puts or self.forgotten or self.direct)

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


class Writer:
    """The file at ``path``, written. ``run`` is the broker's run that message ids come from."""

    def __init__(self, path: Path, run: int, retention: Retention) -> None:
        self._connection = open_writer(path)
        self._journal = Journal(path)
        self.mark = Mark(path)
        self._run = run
        self._retention = retention
        # µs. The second merges what the first has made, once that is over for a stretch.
        self._mergers = (Merger(5_000_000, 60_000_000), Merger(120_000_000, 600_000_000))
        self._topics: dict[str, int] = {}
        # What a crash has left there is to be carried over as well.
        self.unsaved = _size(Path(f"{path}-wal"))
        """About so many bytes are in SQLite's log and not in the file yet."""

    @property
    def connection(self) -> sqlite3.Connection:
        """For what is done before the thread starts."""
        return self._connection

    # Commits

    def begin(self, epoch: str) -> None:
        """What is committed from now on belongs to ``epoch``."""
        self._journal.begin(epoch)
        self.mark.begin(self._connection)

    def recover(self, epoch: str, now: int) -> list[tuple[int, int]]:
        """Take what the last broker, whose epoch it was, has left in the journal into the file.

        Within a transaction at ``now`` (µs). Returns the ranges of offsets that are missing before.
        """
        missing = []
        (offset,) = self._connection.execute(NEXT).fetchone()
        for block in self._journal.left(epoch, offset):
            if block.base > offset:
                missing.append((offset, block.base))
                insert_lost(self._connection, offset, block.base, now)
            self._insert(block, [run.kept() for run in decode_block(block)])
            offset = block.stop
        # What is learnt here does not hold if all of it is rolled back.
        self._rolled_back()
        return missing

    def write_ahead(self, segment: Segment, group: Group) -> None:
        """Put ``group`` into the journal and wait for the disk, in a thread of its own.

        Raises OSError; it is in ``segment`` all the same then, and has to go into the file.
        """
        piece = segment.add(self._run, group.runs, group.nbytes)
        self._journal.write(segment, piece)
        self.mark.write(segment.stop)

    def commit(self, group: Group | None, segment: Segment | None = None) -> None:
        """Write into the file what ``segment`` has of the journal, and ``group``, which it has not.

        Waits for the disk. Raises sqlite3.Error, having written nothing.
        """
        parts: list[tuple[Block, Sequence[Kept]]] = []
        if segment is not None:
            parts += [(builder.block(), own) for builder, own in segment.parts]
        if group is not None:
            for own in group.split():
                base, stop = own[0][OFFSET], own[-1][LAST] + 1
                parts.append((encode_block(own, self._run, base, stop), own))
            forgotten = deque(group.forgotten)
            puts = [(*key, v() if callable(v) else v) for key, v in group.puts.items()]
        else:
            forgotten, puts = deque(), []
        with self._transaction():
            for block, runs in parts:
                while forgotten and forgotten[0][1] <= block.base:
                    self._forget(forgotten.popleft()[0])
                self._insert(block, runs)
            for name, _ in forgotten:
                self._forget(name)
            for put in puts:
                self._put(*put)
        if group is not None and parts:
            # Else the journal has been there before, and may be far ahead.
            self.mark.write(parts[-1][0].stop)

    def _insert(self, block: Block, runs: Sequence[Kept]) -> None:
        totals = topics_of(runs)
        insert_block(self._connection, block)
        self._connection.executemany(
            "INSERT INTO contents VALUES (?, ?, ?, ?)",
            [(block.base, self._topic(name), *sums) for name, sums in totals.items()],
        )
        for name, (count, nbytes) in totals.items():
            self._retention.added(self._topic(name), name, count, nbytes)
        # The columns, the page around them, and of the index one by block and one for each topic.
        self.unsaved += len(block.payloads) + len(block.runs) + (2 + len(totals)) * PAGE_BYTES

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
            self._journal.close()
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
