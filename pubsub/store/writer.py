"""Writing the durable history: group commits, and housekeeping between them.

The file is written in one thread, on the only connection that writes. The journal is written in
another thread.
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
from pubsub.store.columns import senders_nbytes
from pubsub.store.committed_position import CommittedPosition, insert_lost
from pubsub.store.journal import BLOCK_BYTES, Journal, Segment
from pubsub.store.merge import Merger, insert_block
from pubsub.store.retention import FORGOTTEN, Retention
from pubsub.store.schema import NEXT, PAGE_BYTES, open_writer
from pubsub.store.stored_runs import (
    RunRecord,
    first_offset_of,
    last_offset_of,
    payloads_of,
    topics_of,
)

JOURNAL_BYTES = 64 * 1024
"""Largest group, with its overhead, that is written to the journal. For a larger group a
transaction costs less than writing it twice."""
# Pages of the file that may be free before it is shrunk, and how many one step gives back.
_FREE_PAGES = 4096
_VACUUM_PAGES = 256


@dataclass(slots=True, eq=False)
class Group:
    """Messages and metadata that are committed together.

    ``puts`` are the values of the metadata by table and key, None to delete one. ``forgotten`` are
    the topics that have ended, each with the offset of its end. ``waiting`` are the callbacks of
    ``when_stored``; only the reactor thread uses them. ``direct`` is set if the group has to be
    written to the file, because the journal failed.
    """

    runs: list[RunRecord] = field(default_factory=list)
    puts: dict[tuple[str, str], Value | None] = field(default_factory=dict)
    forgotten: list[tuple[str, int]] = field(default_factory=list)
    nbytes: int = 0
    waiting: list[Callable[[bool], None]] = field(default_factory=list)
    direct: bool = False

    def __bool__(self) -> bool:
        return bool(self.runs or self.puts or self.forgotten or self.direct)

    @property
    def fits_journal(self) -> bool:
        """True if the group is to be written to the journal."""
        return self.nbytes <= JOURNAL_BYTES and not (self.puts or self.forgotten or self.direct)

    def split(self) -> list[Sequence[RunRecord]]:
        """Return the runs of each block. No block goes on beyond the end of a topic."""
        ends = {offset for _, offset in self.forgotten}
        blocks: list[Sequence[RunRecord]] = []
        start = size = 0
        for index, run in enumerate(self.runs, 1):
            size += len(payloads_of(run))
            if size >= BLOCK_BYTES or index == len(self.runs) or last_offset_of(run) + 1 in ends:
                blocks.append(self.runs[start:index])
                start, size = index, 0
        return blocks


class Writer:
    """Writes the file at ``path``. ``run`` is the number from which message ids are made."""

    def __init__(self, path: Path, run: int, retention: Retention) -> None:
        self._connection = open_writer(path)
        self._journal = Journal(path)
        self.position = CommittedPosition(path)
        self._run = run
        self._retention = retention
        # The second merges the blocks that the first has made.
        self._mergers = (Merger(5_000_000, 60_000_000), Merger(120_000_000, 600_000_000))
        self._topics: dict[str, int] = {}
        # Includes what a crash has left in the log.
        self.unsaved = _size(Path(f"{path}-wal"))
        """Estimated bytes that are in SQLite's log and not in the file yet."""

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for use before the thread starts."""
        return self._connection

    # Commits

    def begin(self, epoch: str) -> None:
        """Write further commits in ``epoch``."""
        self._journal.begin(epoch)
        self.position.begin(self._connection)

    def recover(self, epoch: str, now: int) -> list[tuple[int, int]]:
        """Copy the messages that the last broker left in the journal in ``epoch`` to the file.

        Called within a transaction at ``now`` (µs). Returns the ranges of offsets that are missing.
        """
        missing = []
        (offset,) = self._connection.execute(NEXT).fetchone()
        for block in self._journal.read(epoch, offset):
            if block.base > offset:
                missing.append((offset, block.base))
                insert_lost(self._connection, offset, block.base, now)
            self._insert(block, [run.record() for run in decode_block(block)])
            offset = block.stop
        # The caller may roll back.
        self._rolled_back()
        return missing

    def write_ahead(self, segment: Segment, group: Group) -> None:
        """Write ``group`` to the journal and wait for the disk; called in the journal's thread.

        Raises OSError. The group is in ``segment`` all the same, and has to be written to the file.
        """
        piece = segment.add(self._run, group.runs, group.nbytes)
        self._journal.write(segment, piece)
        self.position.write(segment.stop)

    def commit(self, group: Group | None, segment: Segment | None = None) -> None:
        """Write to the file ``segment``, which is in the journal, and ``group``, which is not.

        Waits for the disk. Raises sqlite3.Error; nothing has been written in that case.
        """
        blocks: list[tuple[Block, Sequence[RunRecord]]] = []
        if segment is not None:
            blocks += [(builder.block(), runs) for builder, runs in segment.blocks]
        if group is not None:
            for runs in group.split():
                base, stop = first_offset_of(runs[0]), last_offset_of(runs[-1]) + 1
                blocks.append((encode_block(runs, self._run, base, stop), runs))
            forgotten = deque(group.forgotten)
            puts = [(*key, v() if callable(v) else v) for key, v in group.puts.items()]
        else:
            forgotten, puts = deque(), []
        with self._transaction():
            for block, runs in blocks:
                while forgotten and forgotten[0][1] <= block.base:
                    self._forget(forgotten.popleft()[0])
                self._insert(block, runs)
            for name, _ in forgotten:
                self._forget(name)
            for put in puts:
                self._put(*put)
        if group is not None and blocks:
            # Otherwise the journal has written the position, and may be far ahead.
            self.position.write(blocks[-1][0].stop)

    def _insert(self, block: Block, runs: Sequence[RunRecord]) -> None:
        totals = topics_of(runs)
        insert_block(self._connection, block)
        self._connection.executemany(
            "INSERT INTO contents VALUES (?, ?, ?, ?)",
            [(block.base, self._topic(name), *sums) for name, sums in totals.items()],
        )
        for name, (count, nbytes) in totals.items():
            self._retention.added(self._topic(name), name, count, nbytes)
        # The columns, the page around them, and pages of the index: one, and one for each topic.
        self.unsaved += len(block.payloads) + len(block.runs) + (2 + len(totals)) * PAGE_BYTES

    def _forget(self, name: str) -> None:
        """Rename a topic that has ended, so that its messages expire and the name is free."""
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
        # Ids and counts of the transaction are not valid.
        self._topics.clear()
        self._retention.reset()

    # Housekeeping, in steps of some milliseconds

    def checkpoint(self) -> None:
        """Copy the commits from SQLite's log to the file."""
        self.unsaved = 0
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def tidy(self, now: int | None = None) -> tuple[int, bool]:
        """One step of housekeeping: expire, merge, return free pages.

        Age is judged at ``now`` (µs), by default the system's time.

        Returns the first offset, and whether there is more to do. Raises sqlite3.Error.
        """
        if now is None:
            now = time.time_ns() // 1000
        # No client waits for this. The sync of the next commit covers it.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._transaction():
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
        """Store the next offset, which otherwise follows from the last block, that may expire."""
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
        """Delete a block that has expired, or rewrite it once more than half of it has."""
        rows = self._connection.execute(
            "SELECT name, bytes FROM contents JOIN topics ON id = topic WHERE base = ?", (base,)
        ).fetchall()
        if not rows:
            self._connection.execute("DELETE FROM blocks WHERE base = ?", (base,))
            return
        names, runs, payloads_and_headers = self._connection.execute(
            "SELECT names, runs, length(payloads) + length(headers) FROM blocks WHERE base = ?",
            (base,),
        ).fetchone()
        size = payloads_and_headers + senders_nbytes(names, runs)
        if 2 * sum(nbytes for _, nbytes in rows) < size:
            try:
                block = read_block(self._connection, base)
            except Damaged:
                # The damage is reported when the block is read.
                return
            remaining = decode_block(block, frozenset(name for name, _ in rows))
            runs = [run.record() for run in remaining]
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
        """Mark the history as closed properly, and close the files."""
        try:
            self._note_next()
            self._connection.execute("UPDATE state SET clean = 1")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._connection.close()
            self._journal.close()
            self.position.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Transaction:
    """Commits at the end, or rolls back and calls ``rolled_back``."""

    def __init__(self, connection: sqlite3.Connection, rolled_back: Callable[[], None]) -> None:
        self._connection = connection
        self._rolled_back = rolled_back

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
                self._rolled_back()
                # An error, also one of the commit, may have ended the transaction.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
