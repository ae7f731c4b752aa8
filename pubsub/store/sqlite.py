"""The durable history, embedded: SQLite in a file and a journal, written and read by threads.

``commits.py`` decides when messages are committed. The newest messages are in memory as well,
whether they are committed or not, as most readers read those. ``history_reader.py`` answers
queries.
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

from pubsub.broker.batch import Batch, Page
from pubsub.errors import HistoryUnavailable, StartError
from pubsub.interfaces import IStore, Value
from pubsub.store.block_ranges import epochs
from pubsub.store.block_reader import read_bounds, read_last_timestamp
from pubsub.store.checkpoint import Checkpoints
from pubsub.store.commits import BACKLOG, Commits
from pubsub.store.committed_position import mark_lost_end
from pubsub.store.damage_check import DamageCheck, check_tail
from pubsub.store.history_reader import HistoryReader
from pubsub.store.maintenance import Maintenance
from pubsub.store.parcel import Parcel, TopicCounts
from pubsub.store.retention import MICROSECONDS, Retention, RetentionLimits
from pubsub.store.run_log import RunLog
from pubsub.store.schema import Lock, begin_epoch
from pubsub.store.threads import ReaderPool, Worker
from pubsub.store.writer import Writer

log = Logger()
# Bytes of messages that are kept in memory for readers, beside those that are not in the file yet.
RECENT = 8 * 1024**2
MEMORY_BYTES = BACKLOG + RECENT
"""Memory of the process that the history takes."""


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """``interval`` seconds and ``nbytes`` bytes bound a group; ``retention`` bounds the history."""

    interval: float = 0.005
    nbytes: int = 1024**2
    retention: tuple[RetentionLimits, ...] = field(
        default=(RetentionLimits("*", 7 * 86_400, 10 * 1024**3),)
    )


@implementer(IStore)
class SqliteStore:
    """A history in the file at ``path``. ``at_tick_end`` runs a call at the end of the tick.

    ``retention_time`` returns the time at which the age of messages is judged, in seconds since
    the Unix epoch; only the reactor's thread calls it.
    """

    durable = True

    def __init__(
        self,
        path: Path,
        reactor: Any,
        options: SqliteOptions | None = None,
        at_tick_end: Callable[[Callable[[], None]], object] | None = None,
        retention_time: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.epoch = ""
        self.last_timestamp = 0
        self._retention_time = retention_time
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

    # Opening and closing

    def open(self, run: int) -> None:
        """See ``IStore``."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = Lock(self.path)
            try:
                self._writer = Writer(self.path, run, Retention(self._options.retention))
                self._begin(self._writer.connection, run)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise StartError(f"history: cannot use {self.path}: {error.strerror}") from None
        except sqlite3.Error as error:
            raise StartError(f"history: cannot use {self.path}: {error}") from None
        self._thread = Worker("history-writer", 1, self._reactor)
        self._checkpoints = Checkpoints(self.path, self._reactor, self._writer, self._thread)
        self._commits.begin(self._writer, self._thread, self._checkpoints.start_if_due)
        self._damage_check = DamageCheck(self._readers, self._reactor, self._unchecked)
        self._damage_check.start()
        self._maintenance = Maintenance(
            self._reactor,
            self._writer,
            self._thread,
            lambda: self._commits.failing is None,
            self._maintained,
            self._microseconds,
        )

    def _begin(self, connection: sqlite3.Connection, run: int) -> None:
        """Recover the journal, begin an epoch, and load what is needed in memory."""
        (self._clean,) = connection.execute("SELECT clean FROM state").fetchone()
        self._unchecked = 0 if self._clean else check_tail(connection)
        noted = self._writer.position.begin(connection)
        connection.execute("BEGIN IMMEDIATE")
        before, now = epochs(connection), self._microseconds()
        missing = self._writer.recover(before[-1][0], now) if before else []
        lost = mark_lost_end(connection, noted, now)
        connection.execute("UPDATE state SET clean = 0")
        self.epoch = begin_epoch(connection)
        all_epochs = epochs(connection)
        connection.execute("COMMIT")
        self._writer.begin(self.epoch)
        for first, stop in missing if lost is None else (*missing, lost):
            log.error(
                "history: offsets {first} to {last} were committed and are missing",
                first=first,
                last=stop - 1,
            )
        first_offset, end = read_bounds(connection)
        self.last_timestamp = read_last_timestamp(connection)
        self._commits.committed = self._commits.filed = end
        self._log = RunLog(2**62, MEMORY_BYTES, end)
        self._readers = ReaderPool(self.path, self._reactor)
        self._history = HistoryReader(
            self._log, self._commits, self._readers, run, all_epochs, first_offset
        )
        self._tables: dict[str, list[tuple[str, bytes]]] = {}
        for space, key, value in connection.execute("SELECT space, key, value FROM metadata"):
            self._tables.setdefault(space, []).append((key, value))

    def _microseconds(self) -> int:
        return int(self._retention_time() * MICROSECONDS)

    def close(self) -> Deferred[None]:
        """See ``IStore``."""
        return ensureDeferred(self._close())

    async def _close(self) -> None:
        self._damage_check.stop()
        self._maintenance.stop()
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

    # State

    @property
    def summary(self) -> str:
        """See ``IStore``."""
        return (
            f"history: {self.path}, offsets {self.first_offset} to {self.next_offset}, "
            f"epoch {self.epoch}" + ("" if self._clean else "; it was not closed properly")
        )

    @property
    def first_offset(self) -> int:
        """See ``IStore``."""
        return self._history.first_offset

    @property
    def committed(self) -> int:
        """See ``IStore``."""
        return self._commits.committed

    @property
    def next_offset(self) -> int:
        """See ``IStore``."""
        return self._log.next_offset

    @property
    def failures(self) -> int:
        """Number of transactions that failed."""
        return self._commits.failures

    # Reading

    def read(
        self, offset: int, topics: frozenset[str] | None, max_bytes: int, fresh: bool = False
    ) -> Deferred[Page]:
        """See ``IStore``."""
        return self._history.read(offset, topics, max_bytes, fresh)

    def read_parcel(
        self, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> Deferred[Parcel]:
        """See ``IStore``."""
        return self._history.read_parcel(start, stop, topics, max_bytes)

    def offset_at(self, timestamp: int) -> Deferred[int]:
        """See ``IStore``."""
        return self._history.offset_at(timestamp)

    def topics_in(self, start: int, stop: int) -> Deferred[TopicCounts]:
        """See ``IStore``."""
        return self._history.topics_in(start, stop)

    def continues(self, epoch: str, offset: int) -> bool:
        """See ``IStore``."""
        return self._history.continues(epoch, offset)

    def items(self, table: str) -> Iterable[tuple[str, bytes]]:
        """See ``IStore``: as it was when the store was opened."""
        return tuple(self._tables.get(table, ()))

    # Writing

    def append(self, batch: Batch) -> None:
        """See ``IStore``."""
        if self._commits.failing is not None:
            raise HistoryUnavailable(self._commits.failing)
        run = self._log.append(batch)
        assert run is not None
        self._commits.add(run)

    def forget(self, topic: str) -> None:
        """See ``IStore``."""
        self._log.forget(topic)
        self._commits.forget(topic, self.next_offset)

    def put(self, table: str, key: str, value: Value) -> None:
        """See ``IStore``."""
        self._commits.put(table, key, value)

    def delete(self, table: str, key: str) -> None:
        """See ``IStore``."""
        self._commits.put(table, key, None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """See ``IStore``. A group is one transaction or record, so it waits until it has all."""
        if self._commits.failing is not None:
            raise HistoryUnavailable(self._commits.failing)
        self._commits.hold()
        try:
            yield
        finally:
            self._commits.release()

    def when_written(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""
        self._commits.when_stored(call)

    def when_stored(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""
        self._commits.when_stored(call)

    def _maintained(self, first_offset: int) -> None:
        self._history.first_offset = first_offset
        self._checkpoints.start_if_due()
