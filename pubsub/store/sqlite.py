"""The durable history, embedded: SQLite in a file and a journal, written and read by threads.

When something gets to disk, and who is told, is in ``commits.py``.

The newest runs are in memory as well, whether committed or not: most readers want those. How
what is asked of the history is answered is in ``questions.py``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from zope.interface import implementer

from pubsub.broker.batch import Batch
from pubsub.errors import HistoryUnavailable, StartError
from pubsub.interfaces import IStore, Value
from pubsub.store.block_ranges import epochs
from pubsub.store.block_reader import read_bounds
from pubsub.store.checkpoint import Checkpoints
from pubsub.store.commits import BACKLOG, Commits
from pubsub.store.committed_position import mend_end
from pubsub.store.damage_check import Checker, check_tail
from pubsub.store.history_reader import HistoryReader
from pubsub.store.maintenance import Tidying
from pubsub.store.retention import MICROSECONDS, Limits, Retention
from pubsub.store.schema import Lock, begin_epoch
from pubsub.store.stored_runs import RunLog
from pubsub.store.threads import Readers, Worker
from pubsub.store.writer import Writer

log = Logger()
# Bytes of what is kept in memory besides what has to be.
RECENT = 8 * 1024**2
MEMORY_BYTES = BACKLOG + RECENT
"""What the history takes of the process's memory."""


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """``interval`` seconds and ``nbytes`` bytes bound a group; ``retention`` what is kept."""

    interval: float = 0.005
    nbytes: int = 1024**2
    retention: tuple[Limits, ...] = field(default=(Limits("*", 7 * 86_400, 10 * 1024**3),))


@implementer(IStore)
class SqliteStore(HistoryReader):
    """A history in the file at ``path``. ``at_tick_end`` is as ``BrokerService``'s."""

    durable = True

    def __init__(
        self,
        path: Path,
        reactor: Any,
        options: SqliteOptions | None = None,
        at_tick_end: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self.path = path
        self.epoch = ""
        self.first_offset = 0
        self._reactor = reactor
        self._options = options or SqliteOptions()
        self._log = RunLog(2**62, MEMORY_BYTES)
        self._commits = Commits(
            reactor,
            at_tick_end or partial(reactor.callLater, 0),
            self._options.interval,
            self._options.nbytes,
        )
        self.gate = self._commits.gate

    # Life

    def open(self, run: int) -> None:
        """See IStore."""
        self._number = run
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = Lock(self.path)
            try:
                self._writer = Writer(self.path, run, Retention(self._options.retention))
                self._begin(self._writer.connection)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise StartError(f"history: cannot use {self.path}: {error.strerror}") from None
        except sqlite3.Error as error:
            raise StartError(f"history: cannot use {self.path}: {error}") from None
        self._thread = Worker("history-writer", 1, self._reactor)
        self._checkpoints = Checkpoints(self.path, self._reactor, self._writer, self._thread)
        self._commits.begin(self._writer, self._thread, self._checkpoints.look)
        self._readers = Readers(self.path, self._reactor)
        self._checker = Checker(self._readers, self._reactor, self._unchecked)
        self._checker.start()
        self._tidying = Tidying(
            self._reactor,
            self._writer,
            self._thread,
            lambda: self._commits.failing is None,
            self._tidied,
        )

    def _begin(self, connection: sqlite3.Connection) -> None:
        (self._clean,) = connection.execute("SELECT clean FROM state").fetchone()
        self._unchecked = 0 if self._clean else check_tail(connection)
        noted = self._writer.mark.begin(connection)
        connection.execute("BEGIN IMMEDIATE")
        before, now = epochs(connection), int(time.time() * MICROSECONDS)
        missing = self._writer.recover(before[-1][0], now) if before else []
        lost = mend_end(connection, noted, now)
        connection.execute("UPDATE state SET clean = 0")
        self.epoch = begin_epoch(connection)
        self._epochs = epochs(connection)
        connection.execute("COMMIT")
        self._writer.begin(self.epoch)
        for first, stop in missing if lost is None else (*missing, lost):
            log.error(
                "history: offsets {first} to {last} were committed and are not there any more",
                first=first,
                last=stop - 1,
            )
        self.first_offset, end = read_bounds(connection)
        self._commits.committed = self._commits.filed = end
        self._log = RunLog(2**62, MEMORY_BYTES, end)
        self._tables: dict[str, list[tuple[str, bytes]]] = {}
        for space, key, value in connection.execute("SELECT space, key, value FROM metadata"):
            self._tables.setdefault(space, []).append((key, value))

    def close(self) -> Deferred[None]:
        """See IStore."""
        return ensureDeferred(self._close())

    async def _close(self) -> None:
        self._checker.stop()
        self._tidying.stop()
        if not await self._commits.finish():
            log.error(
                "history: {count} messages could not be written and are lost: {reason}",
                count=self.next_offset - self.committed,
                reason=self._commits.failing,
            )
        self._checkpoints.stop()
        try:
            await self._thread.run(self._writer.close)
        except sqlite3.Error as error:
            log.error("history: closing: {reason}", reason=error)
        self._thread.stop()
        self._readers.stop()
        self._lock.release()

    @property
    def summary(self) -> str:
        """See IStore."""
        return (
            f"history: {self.path}, offsets {self.first_offset} to {self.next_offset}, "
            f"epoch {self.epoch}" + ("" if self._clean else "; it was not closed in order")
        )

    @property
    def committed(self) -> int:
        """See IStore."""
        return self._commits.committed

    @property
    def failures(self) -> int:
        """Transactions that failed."""
        return self._commits.failures

    @property
    def next_offset(self) -> int:
        """See IStore."""
        return self._log.next_offset

    # Writing

    def append(self, batch: Batch) -> None:
        """See IStore."""
        if self._commits.failing is not None:
            raise HistoryUnavailable(self._commits.failing)
        run = self._log.append(batch)
        assert run is not None
        self._commits.add(run)

    def forget(self, topic: str) -> None:
        """See IStore."""
        self._log.forget(topic)
        self._commits.forget(topic, self.next_offset)

    def put(self, table: str, key: str, value: Value) -> None:
        """See IStore."""
        self._commits.put(table, key, value)

    def delete(self, table: str, key: str) -> None:
        """See IStore."""
        self._commits.put(table, key, None)

    def items(self, table: str) -> Iterable[tuple[str, bytes]]:
        """See IStore: as it was when the store was opened."""
        return tuple(self._tables.get(table, ()))

    @contextmanager
    def together(self) -> Iterator[None]:
        """See IStore: a group is one transaction or record, so it stays here until all is in it."""
        if self._commits.failing is not None:
            raise HistoryUnavailable(self._commits.failing)
        self._commits.hold()
        try:
            yield
        finally:
            self._commits.release()

    def when_stored(self, call: Callable[[bool], None]) -> None:
        """See IStore."""
        self._commits.when_stored(call)

    def _tidied(self, first: int) -> None:
        self.first_offset = first
        self._checkpoints.look()
