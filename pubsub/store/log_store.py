"""The durable history: a log of segments in a directory, written and read by threads.

``commit_state_machine.py`` decides when messages are written. Most readers read the newest
messages, which are in memory as well, written or not; threads read the others from the segments.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.logger import Logger
from zope.interface import implementer

from pubsub.broker.figures.histogram import Histogram
from pubsub.broker.routing.batch import Batch, Page
from pubsub.errors import HistoryUnavailable
from pubsub.interfaces import CommitWatcher, IStore, Value
from pubsub.kernel import Senders
from pubsub.store.catalog.catalog import CACHE_BYTES, set_horizons
from pubsub.store.commits.atomic_commits import AtomicCommits
from pubsub.store.commits.commit_gate import MAX_UNWRITTEN
from pubsub.store.commits.commit_state_machine import CommitStateMachine
from pubsub.store.commits.commit_threads import CommitThreads
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.disk_remedies import may_lack_space, refuse_start
from pubsub.store.log_options import LogOptions, options_of
from pubsub.store.memory_store import parcel_of
from pubsub.store.migration.sqlite_migration import migrate_missing
from pubsub.store.opening.epochs import continuation, continues
from pubsub.store.opening.recovery import boot_id, recover
from pubsub.store.reading.reader_threads import ReaderThreads
from pubsub.store.reading.run_log import RECENT, RunLog
from pubsub.store.records.parcel import Parcel
from pubsub.store.records.record import Begin
from pubsub.store.records.topic_counts import TopicCounts
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.upkeep.expired_messages import ExpiredMessages, grain_of, horizons_of
from pubsub.store.upkeep.retention_limits import MICROSECONDS
from pubsub.store.upkeep.upkeep import Rounds, Upkeep

log = Logger()
MEMORY_BYTES = RECENT + CACHE_BYTES
"""Memory that the history takes besides that of messages that are not on disk."""


@implementer(IStore)
class LogStore:
    """A history in the directory ``path``. ``at_tick_end`` runs a call at the end of the tick.

    ``retention_time`` returns the time at which the age of messages is judged, in seconds since
    the Unix epoch; only the reactor's thread calls it. If the directory does not exist and the
    file ``migrate_from`` does, the log is made from that history of version 0.1.
    """

    durable = True

    def __init__(
        self,
        path: Path,
        reactor: Any,
        options: LogOptions | None = None,
        at_tick_end: Callable[[Callable[[], None]], object] | None = None,
        retention_time: Callable[[], float] = time.time,
        migrate_from: Path | None = None,
    ) -> None:
        self.path = path
        self._migrate_from = migrate_from
        self.epoch, self.last_timestamp = "", 0
        self._retention_time = retention_time
        self._reactor = reactor
        self._options = options or LogOptions()
        self._effects = CommitThreads(reactor, at_tick_end or partial(reactor.callLater, 0))
        self._watcher: CommitWatcher | None = None
        self._upkeep: Upkeep | None = None
        self._continue_at(0)

    def _continue_at(self, offset: int) -> None:
        """Keep the messages from ``offset`` on in memory, and commit them."""
        self._log = RunLog(2**62, MAX_UNWRITTEN + RECENT, offset)
        effects, options = self._effects, self._options
        bounds = options.interval, options.nbytes
        commits = CommitStateMachine(effects, *bounds, offset, options.unsynced)
        commits.figures.watcher = self._watcher
        self._commits = effects.commits = commits
        self.gate = commits.gate
        self.atomic_commits = AtomicCommits(commits, self._log)

    def watch_commits(self, watcher: CommitWatcher) -> None:
        """See ``IStore``."""
        self._watcher = self._commits.figures.watcher = watcher

    # Opening and closing

    def open(self, run: int) -> None:
        """See ``IStore``."""
        try:
            migrate_missing(self._migrate_from, self.path)
            self._directory = LogDirectory(self.path, create=True)
            try:
                self._directory.lock()
                self._begin_or_use_reserve(run)
            except BaseException:
                self._directory.close()
                raise
        except (OSError, sqlite3.Error) as error:
            refuse_start(self.path, error)

    def _begin_or_use_reserve(self, run: int) -> None:
        try:
            self._begin(run)
        except (OSError, sqlite3.OperationalError) as error:
            if not may_lack_space(error) or not self._directory.use_reserve():
                raise
            log.warn("history: {problem}; trying again with the reserve", problem=error)
            self._begin(run)

    def _begin(self, run: int) -> None:
        """Recover the log, and continue it in a new epoch; SQLite has that later on a full disk."""
        self._run = run
        found = recover(self._directory)
        self.last_timestamp = max([one.last_timestamp for one in found.catalog.segments], default=0)
        self._catalog, self._metadata, self._clean = found.catalog, found.metadata, found.clean
        try:
            horizons = horizons_of(self._options.retention)
            set_horizons(self._catalog, horizons, self._metadata.horizons())
            known = self._metadata.epochs()
            number = known[-1].number + 1 if known else 1
            begin = Begin(number, secrets.randbits(32), time.time_ns() // 1000, boot_id())
            grain, uncached = grain_of(self._options.retention), self._options.uncached
            self._writer = LogWriter(
                self._directory, self._catalog, self._metadata, run, grain=grain, uncached=uncached
            )
            self._writer.begin(found.offset, number, found.sequence, [begin], found.lost)
            self.epoch = f"{number}-{begin.mark:08x}"
            self._epochs = [*((one.name, one.begins) for one in known), (self.epoch, found.offset)]
            self._tables: dict[str, list[tuple[str, bytes]]] = {}
            for table, key, value in self._metadata.items():
                self._tables.setdefault(table, []).append((key, value))
        except BaseException:
            self._metadata.close()
            raise
        self._directory.keep_reserve()
        self._continue_at(found.offset)
        self._expiry = ExpiredMessages(self._catalog, self._options.retention)
        self._upkeep = upkeep = Upkeep(
            self._directory,
            self._catalog,
            self._metadata,
            self._writer,
            self._expiry,
            0 if self._clean else found.offset,
            grain,
            self._options.compress,
        )
        self._rounds = Rounds(self._reactor, upkeep, self._microseconds)
        self._readers = ReaderThreads(self._catalog, self._reactor)
        self._effects.begin(self._writer)

    def _microseconds(self) -> int:
        return int(self._retention_time() * MICROSECONDS)

    def close(self) -> Deferred[None]:
        """See ``IStore``."""
        return succeed(None) if self._upkeep is None else ensureDeferred(self._close())

    async def _close(self) -> None:
        self._rounds.stop()
        self.atomic_commits.close()
        if not await self._commits.finish() and self.next_offset > self.committed:
            log.error(
                "history: messages could not be written and are lost: {count}; {reason}",
                count=self.next_offset - self.committed,
                reason=self._commits.failing,
            )
        try:
            await self._effects.run(self._writer.close)
        except (OSError, sqlite3.Error) as error:
            log.error("history: closing: {reason}", reason=error)
        self._effects.stop()
        self._readers.stop()
        self._metadata.close()
        self._directory.close()

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """See ``IStore``."""
        self._options = options = options_of(settings)
        self._commits.reconfigure(options.interval, options.nbytes)
        if self._upkeep is not None:
            self._upkeep.reconfigure(options.retention, options.compress)

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
        return self._catalog.first

    @property
    def trouble(self) -> str | None:
        """See ``IStore``."""
        return self._commits.failing

    @property
    def committed(self) -> int:
        """See ``IStore``."""
        return self._commits.committed

    @property
    def next_offset(self) -> int:
        """See ``IStore``."""
        return self._log.next_offset

    @property
    def commit_times(self) -> Histogram:
        """See ``IStore``."""
        return self._commits.figures.write_times

    @property
    def sync_times(self) -> Histogram:
        """See ``IStore``."""
        return self._commits.figures.sync_times

    def figures(self) -> dict[str, float]:
        """See ``IStore``."""
        assert self._upkeep is not None, "the store is not open"
        return {
            **self._commits.figures.totals(self._reactor.seconds()),
            "stalled_seconds": self._effects.stalled_seconds,
            **self._upkeep.usage.figures(),
            "metadata_failing": float(self._writer.metadata_failing is not None),
            **self._catalog.read_errors.figures(),
            "damaged_offsets": sum([stop - start for start, stop in self.damaged()]),
        }

    def damaged(self) -> list[tuple[int, int]]:
        """See ``IStore``."""
        return self._catalog.damage.ranges(self.first_offset)

    # Reading

    def read(
        self,
        offset: int,
        topics: frozenset[str] | None,
        max_bytes: int,
        fresh: bool = False,
        joined: bool = False,
    ) -> Deferred[Page]:
        """See ``IStore``."""
        committed = self._commits.committed
        if offset >= self._log.first_offset and not self._catalog.hides(offset, topics):
            end = None if fresh else committed
            return succeed(self._log.read(offset, topics, max_bytes, end, joined))
        return self._readers.read(offset, topics, max_bytes, committed, joined)

    def read_parcel(
        self, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> Deferred[Parcel]:
        """See ``IStore``: from the segments, unless all is in memory and nothing hidden."""
        stop = min(stop, self._commits.committed)
        if start >= self._log.first_offset and not self._catalog.hides(start, topics):
            parcel = parcel_of(self._log, self._run, start, stop, topics, max_bytes)
            return succeed(replace(parcel, first=self.first_offset))
        return self._readers.read_parcel(start, stop, topics, max_bytes)

    def offset_at(self, timestamp: int) -> Deferred[int]:
        """See ``IStore``."""
        return self._readers.offset_at(timestamp, self._commits.committed)

    def topics_in(self, start: int, stop: int) -> Deferred[TopicCounts]:
        """See ``IStore``."""
        return self._readers.topics_in(start, min(stop, self._commits.committed))

    def continues(self, epoch: str, offset: int) -> bool:
        """See ``IStore``."""
        return continues(self._epochs, epoch, offset)

    def continuation(self, epoch: str, offset: int) -> int | None:
        """See ``IStore``."""
        return continuation(self._epochs, epoch, offset)

    def items(self, table: str) -> Iterable[tuple[str, bytes]]:
        """See ``IStore``: as it was when the store was opened."""
        return tuple(self._tables.get(table, ()))

    # Writing

    def append(self, batch: Batch, senders: Senders | None = None) -> None:
        """See ``IStore``."""
        if self._commits.failing is not None and not self.atomic_commits.is_continuing:
            raise HistoryUnavailable(self._commits.failing)
        self._commits.add(self._log.append(batch, senders))

    def together(self) -> AbstractContextManager[None]:
        """See ``IStore``."""
        return self.atomic_commits.together()

    def begin_commit(self, finish: Callable[[], None]) -> None:
        """See ``IStore``."""
        self.atomic_commits.begin(finish)

    def continuing(self) -> AbstractContextManager[None]:
        """See ``IStore``."""
        return self.atomic_commits.continuing()

    def end_commit(self) -> None:
        """See ``IStore``."""
        self.atomic_commits.end()

    def forget(self, topic: str) -> None:
        """See ``IStore``."""
        offset = self._commits.end(topic, self.next_offset)
        self._log.forget(topic, offset)
        self._catalog.end_topic(topic, offset)
        self._expiry.end(topic, offset)

    def put(self, table: str, key: str, value: Value) -> None:
        """See ``IStore``."""
        self._commits.put(table, key, value)

    def delete(self, table: str, key: str) -> None:
        """See ``IStore``."""
        self._commits.put(table, key, None)

    def when_written(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""
        self._commits.when_written(call)

    def when_synced(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""
        self._commits.when_synced(call)

    when_stored = when_synced
