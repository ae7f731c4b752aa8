"""The base of the tests of the durable history: logs and stores on real directories."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pubsub.broker.routing.batch import Batch, Headers
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.log_options import LogOptions
from pubsub.store.log_store import LogStore
from pubsub.store.opening import recovery
from pubsub.store.opening.recovery import recover
from pubsub.store.reading.log_reader import read_page
from pubsub.store.reading.run_log import RunLog
from pubsub.store.records.record import Begin, End, Put
from pubsub.store.records.stored_runs import RunRecord
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.upkeep.retention_limits import RetentionLimits
from tests.unit.block_batches import TOPICS, batches
from tests.unit.fakes import batch_of, copy_still, mixed_batch, scratch

RUN = 0xABCDEF
BOOT, OTHER_BOOT = b"b" * 16, b"c" * 16


@dataclass(frozen=True)
class Stored:
    """One message as it was published or read."""

    offset: int
    topic: str
    payload: bytes
    headers: Headers | None = None


def messages(batches: Iterable[Batch]) -> list[Stored]:
    """The messages of ``batches``, with their offsets."""
    found = []
    for batch in batches:
        assert batch.nbytes == sum(map(len, batch.payloads()))
        for _, run in batch.runs():
            for index, payload in enumerate(run.payloads()):
                own = None if run.headers is None else run.headers[index]
                found.append(Stored(run.offset + index, run.topic, payload, own))
    return found


@st.composite
def any_batches(draw: st.DrawFn) -> Batch:
    """Batches of one topic or of several."""
    if draw(st.booleans()):
        return draw(batches())
    sent = draw(
        st.lists(st.tuples(st.sampled_from(TOPICS), st.binary(max_size=20)), min_size=2, max_size=8)
    )
    batch = mixed_batch(sent, TOPICS)
    return dataclasses.replace(batch, timestamp=draw(st.integers(0, 2**60)))


def runs_of(group: Iterable[Batch], log: RunLog) -> list[RunRecord]:
    """Append batches to ``log``; return their records."""
    return [log.append(batch) for batch in group]


class Log:
    """A log in ``path`` that is written and read in this thread, under the boot ``boot``."""

    def __init__(self, path: Path, boot: bytes = BOOT) -> None:
        self.boot = boot
        self.ended = False
        self.directory = LogDirectory(path, create=True)
        try:
            self.directory.lock()
            self.recovered = recover(self.directory)
        except BaseException:
            self.directory.close()
            raise
        self.catalog, self.metadata = self.recovered.catalog, self.recovered.metadata
        known = self.metadata.epochs()
        self.epoch = known[-1].number + 1 if known else 1
        self.writer = LogWriter(
            self.directory, self.catalog, self.metadata, RUN, clock=lambda: 1_000_000
        )
        try:
            self.writer.begin(
                self.recovered.offset,
                self.epoch,
                self.recovered.sequence,
                [Begin(self.epoch, 7, 0, boot)],
                self.recovered.lost,
            )
        except BaseException:
            self._close_others()
            raise
        self.appended = RunLog(2**62, 2**30, self.recovered.offset)

    @property
    def offset(self) -> int:
        """The offset after the last message that was appended."""
        return self.appended.next_offset

    def group(self, *given: Batch, puts: dict[str, bytes | None] | None = None) -> WriteGroup:
        """Return a group of these batches and values, which gets the next offsets."""
        group = WriteGroup(runs_of(given, self.appended))
        for key, value in (puts or {}).items():
            group.puts["t", key] = Put("t", key, value)
        return group

    def commit(
        self, *given: Batch, puts: dict[str, bytes | None] | None = None, sync: bool = False
    ) -> None:
        """Write a group."""
        self.writer.write(self.group(*given, puts=puts), sync)

    def end(self, topic: str) -> None:
        """Write the end of a topic."""
        group = WriteGroup()
        group.end(End(topic, self.offset))
        self.catalog.end_topic(topic, self.offset)
        self.writer.write(group, False)

    def sync(self) -> None:
        """Sync."""
        self.writer.sync()

    def read(self) -> tuple[list[Stored], list[tuple[int, int]]]:
        """Return all messages, and the damaged ranges."""
        return read_all(self)

    def items(self) -> dict[str, bytes]:
        """Return the values of the metadata, as of the last sync."""
        return {key: value for _, key, value in self.metadata.items()}

    def close(self) -> None:
        """Close the log properly."""
        self.ended = True
        try:
            self.writer.close()
        finally:
            self._close_others()

    def _close_others(self) -> None:
        self.metadata.close()
        self.directory.close()

    def kill(self) -> None:
        """End as a process does that is killed."""
        if self.ended:
            return
        self.ended = True
        opened = {one.file for one in self.writer._to_seal}
        if self.writer._open is not None:
            opened.add(self.writer._open.file)
        for file in (*opened, self.writer._note):
            with suppress(OSError):
                os.close(file)
        self._close_others()


def read_all(log: Log) -> tuple[list[Stored], list[tuple[int, int]]]:
    """Read a log in small pages."""
    found: list[Batch] = []
    damaged: list[tuple[int, int]] = []
    at = log.catalog.first
    while at < log.catalog.stop:
        page = read_page(log.catalog, at, None, 500)
        assert page.next_offset > at
        found += page.batches
        damaged += page.damaged
        at = page.next_offset
    return messages(found), damaged


class LogCase(SynchronousTestCase):
    """A log in a directory, opened again and again."""

    def setUp(self) -> None:
        self.path = scratch(self) / "log"
        self.boot = BOOT
        self.patch(recovery, "boot_id", lambda: self.boot)

    def patch(self, target: object, name: str, value: object) -> None:
        """Replace an attribute until the end of the test."""
        super().patch(target, name, value)  # type: ignore[no-untyped-call]

    def log(self, path: Path | None = None) -> Log:
        """Open the log, which is killed at the end of the test unless it was before."""
        log = Log(path or self.path, self.boot)
        self.addCleanup(log.kill)
        return log

    def copy(self) -> Path:
        """Copy the directory as a crash would leave it now."""
        path = scratch(self) / "log"
        copy_still(self.path, path)
        return path

    def names(self, suffix: str = ".log") -> list[str]:
        """The names of files, in order."""
        return sorted(name for name in os.listdir(self.path) if name.endswith(suffix))


def keep_everything(**options: Any) -> LogOptions:
    """Options that expire nothing and commit at once."""
    return LogOptions(**{"interval": 0.0, "retention": (), **options})


def limits(**given: float) -> tuple[RetentionLimits, ...]:
    """One rule for every topic."""
    return (RetentionLimits("*", **given),)


class StoreCase(TestCase):
    """A directory, and a store on it that is closed after the test."""

    def setUp(self) -> None:
        self.path = scratch(self) / "state" / "history"
        self.store = self.open()

    def open(self, options: LogOptions | None = None) -> LogStore:
        """Return a store on the directory."""
        store = LogStore(self.path, reactor, options or keep_everything())
        store.open(RUN)
        self.store = store
        return store

    def patch(self, target: object, name: str, value: object) -> None:
        """Replace an attribute until the end of the test."""
        super().patch(target, name, value)  # type: ignore[no-untyped-call]

    def tearDown(self) -> Deferred[None]:  # type: ignore[override]
        return self.store.close()

    async def reopen(self, options: LogOptions | None = None) -> LogStore:
        """Open the same directory with another store."""
        await self.store.close()
        return self.open(options)

    async def put(self, *batches: Batch) -> None:
        """Append and wait until the messages are on disk."""
        for batch in batches:
            self.store.append(batch)
        assert await self.stored()

    async def one_each(self, *batches: Batch) -> None:
        """Append each batch as a record of its own."""
        for batch in batches:
            await self.put(batch)

    def stored(self) -> Deferred[bool]:
        """Fires when everything appended so far is on disk, or has failed."""
        done: Deferred[bool] = Deferred()
        self.store.when_stored(done.callback)
        return done

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` is true, at most for the time limit of the test."""
        while not condition():
            await deferLater(reactor, 0.001)

    async def read(
        self,
        offset: int = 0,
        topics: Iterable[str] | None = None,
        nbytes: int = 1000,
        cold: bool = False,
    ) -> list[Stored]:
        """All pages from ``offset`` on; ``cold`` reads them from the segments."""
        names = None if topics is None else frozenset(topics)
        found: list[Batch] = []
        end = self.store.committed
        if cold:
            self.forget_recent()
        while offset < end:
            page = await self.store.read(offset, names, nbytes)
            assert page.next_offset > offset
            offset = page.next_offset
            found += page.batches
        return messages(found)

    def forget_recent(self) -> None:
        """Remove the runs from memory, so that the segments are read."""
        log = self.store._log
        log._runs, log._head, log._bytes = [], 0, 0

    def crashed(self) -> Path:
        """Copy the directory as a crash would leave it now."""
        path = scratch(self) / "history"
        copy_still(self.path, path)
        return path

    async def after(self, path: Path) -> tuple[list[Stored], tuple[tuple[int, int], ...]]:
        """Return the messages that the next broker finds in a directory, and damaged ranges."""
        store = LogStore(path, reactor, keep_everything())
        store.open(RUN)
        try:
            page = await store.read(0, None, 10**6)
            assert page.next_offset == store.next_offset == store.committed
        finally:
            await store.close()
        return messages(page.batches), page.damaged


def numbered(start: int, stop: int, topic: str = "t") -> Batch:
    """A batch of which each message is its own number."""
    return batch_of([b"%d" % number for number in range(start, stop)], topic)
