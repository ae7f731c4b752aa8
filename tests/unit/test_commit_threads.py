"""Small groups are written in the reactor thread; others, and beside a sync, in their thread."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pubsub.broker.routing.batch import Batch
from pubsub.store.commits import commit_state_machine, commit_threads, log_writer
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.worker import Worker
from tests.unit.fakes import batch_of
from tests.unit.logs import StoreCase
from tests.unit.streams import logged

HERE = threading.get_ident


def start_none(thread: threading.Thread) -> None:
    """Fail as ``Thread.start`` does at the system's limit of threads."""
    raise RuntimeError("can't start new thread")


class WriteCase(StoreCase):
    """A store, and the threads in which its groups are written: True is the reactor's."""

    def setUp(self) -> None:
        self.patch(commit_state_machine, "RETRY_SECONDS", 0.02)
        super().setUp()
        # No write is slow, however busy the machine is.
        self.now, self.ran = 100.0, 0.0
        self.patch(time, "thread_time", lambda: self.ran)
        self.patch(commit_threads.CommitThreads, "seconds", lambda _: self.now)
        self.threads: list[bool] = []
        self.before_write: Callable[[], None] = lambda: None
        write, own = LogWriter.write, HERE()

        def note(writer: LogWriter, group: Any, sync: bool) -> None:
            self.threads.append(HERE() == own)
            self.before_write()
            write(writer, group, sync)

        self.patch(LogWriter, "write", note)

    async def written(self, batch: Batch | None = None) -> bool:
        """Publish, and return in which thread it was written."""
        self.store.append(batch_of([b"x" * 64]) if batch is None else batch)
        called: list[bool] = []
        self.store.when_written(called.append)
        await self.until(lambda: bool(called))
        assert called == [True]
        return self.threads[-1]


class PlaceTests(WriteCase):
    """The thread in which a group is written"""

    async def test_a_small_group(self) -> None:
        self.store.append(batch_of([b"a"]))
        called: list[bool] = []
        self.store.when_written(called.append)
        # It is acknowledged at the end of the tick.
        await deferLater(reactor, 0)
        assert called == self.threads == [True]
        assert self.store.committed == 1

    async def test_a_large_one(self) -> None:
        assert not await self.written(batch_of([b"x" * 20_000]))
        assert await self.written()

    async def test_values_of_the_metadata(self) -> None:
        self.store.put("t", "k", b"v")
        assert not await self.written()

    async def test_messages_that_are_published_when_others_are_written(self) -> None:
        left = 1000

        def publish(written: bool = True) -> None:
            nonlocal left
            assert written
            left -= 1
            if left:
                self.store.append(batch_of([b"x"]))
                self.store.when_written(publish)

        publish()
        await self.until(lambda: not left)
        assert self.store.committed == 999

    async def test_a_client_that_waits_for_the_disk(self) -> None:
        self.store.append(batch_of([b"a"]))
        assert await self.stored()
        assert self.threads == [False]

    async def test_a_file_that_becomes_larger(self) -> None:
        def size() -> int:
            return os.stat(next(self.path.glob("*.log"))).st_size

        assert await self.written()
        before = size()
        while size() == before:
            assert await self.written(batch_of([b"x" * 10_000]))
        assert size() == before + 256 * 1024

    async def test_one_that_needs_a_sync(self) -> None:
        """The offsets are above those that are known to be in use after a loss of power."""
        assert not await self.written(batch_of([b""] * 2**17))
        assert await self.written()

    async def test_one_that_begins_a_segment(self) -> None:
        for name in ("SEGMENT_BYTES", "_SEGMENT_RECORDS"):
            real = getattr(log_writer, name)
            self.patch(log_writer, name, 1)
            assert not await self.written()
            self.patch(log_writer, name, real)
            assert await self.written()

    async def test_beside_a_sync(self) -> None:
        ended = threading.Event()
        real = os.fdatasync

        def slow(file: int) -> None:
            ended.wait()
            real(file)

        assert await self.written()
        self.patch(os, "fdatasync", slow)
        stored: list[bool] = []
        self.store.when_stored(stored.append)
        assert not await self.written()
        assert stored == []
        ended.set()
        await self.until(lambda: stored == [True])
        assert await self.written()


class TroubleTests(WriteCase):
    """Writes that are slow or fail"""

    async def test_after_a_slow_write(self) -> None:
        def delay() -> None:
            self.now += 0.02

        for pause in (1, 2, 4):
            self.before_write = delay
            assert await self.written()
            self.before_write = lambda: None
            self.now += pause - 0.1
            assert not await self.written()
            self.now += 0.1
        # A quick one ends that.
        assert await self.written()
        self.before_write = delay
        assert await self.written()
        self.now += 1
        assert await self.written()

    async def test_a_write_that_is_busy_for_long(self) -> None:
        def collect_garbage() -> None:
            self.now += 0.02
            self.ran += 0.018

        self.before_write = collect_garbage
        assert await self.written()
        assert await self.written()

    async def test_a_disk_that_fails(self) -> None:
        real = os.pwritev

        def fail(*given: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        assert await self.written()
        self.patch(os, "pwritev", fail)
        self.store.append(batch_of([b"b"]))
        called: list[bool] = []
        self.store.when_written(called.append)
        await deferLater(reactor, 0)
        assert called == [False]
        assert self.store.trouble == "[Errno 28] No space left on device"
        self.patch(os, "pwritev", real)
        await self.until(lambda: self.store.trouble is None)
        assert self.store.committed == 2
        assert await self.written()

    async def hanging_disk(self) -> threading.Event:
        """Open the store on a disk whose next sync ends when the event is set."""
        answers = threading.Event()
        self.addCleanup(answers.set)
        real = os.fdatasync

        def hang(file: int) -> None:
            answers.wait()
            real(file)

        self.patch(commit_threads, "_WATCH_SECONDS", 0.01)
        await self.reopen()
        self.store.append(batch_of([b"a"]))
        assert await self.stored()
        assert self.store.figures()["stalled_seconds"] == 0
        self.patch(commit_threads, "_STALLED_SECONDS", 0.01)
        self.patch(os, "fdatasync", hang)
        self.store.append(batch_of([b"b"]))
        return answers

    async def test_a_disk_that_does_not_answer(self) -> None:
        lines = logged(self)
        answers = await self.hanging_disk()
        stored: list[bool] = []
        self.store.when_stored(stored.append)
        await self.until(lambda: bool(lines))
        assert self.store.figures()["stalled_seconds"] > 0
        assert stored == []
        answers.set()
        await self.until(lambda: stored == [True] and len(lines) > 1)
        assert lines[0].startswith("history: the disk has not ended a write or sync for ")
        assert lines[1:] == ["history: the disk answers again"]
        assert self.store.figures()["stalled_seconds"] == 0

    async def test_a_close_while_the_disk_does_not_answer(self) -> None:
        lines = logged(self)
        answers = await self.hanging_disk()
        closed = self.store.close()
        await self.until(lambda: bool(lines))
        assert "a stop, wait for it" in lines[0]
        assert not closed.called
        answers.set()
        await closed
        self.open()

    async def test_threads_that_cannot_be_started(self) -> None:
        real = threading.Thread.start
        self.patch(threading.Thread, "start", start_none)
        called: list[bool] = []
        self.store.append(batch_of([b"x" * 20_000]))
        self.store.when_stored(called.append)
        await self.until(lambda: bool(called))
        assert called == [False]
        assert self.store.trouble == "[Errno 11] no thread can be started"
        self.patch(threading.Thread, "start", real)
        await self.until(lambda: self.store.trouble is None)
        assert self.store.committed == 1
        self.store.append(batch_of([b"a"]))
        assert await self.stored()
        assert self.threads == [False, False]

    async def test_a_close_without_threads(self) -> None:
        assert await self.written()
        real = threading.Thread.start
        self.patch(threading.Thread, "start", start_none)
        await self.reopen()
        self.patch(threading.Thread, "start", real)
        assert self.store.committed == 1


class WorkerTests(TestCase):
    """Worker"""

    async def test_a_second_thread_that_cannot_be_started(self) -> None:
        worker = Worker("test", 2, reactor)
        self.addCleanup(worker.stop)
        assert await worker.run(lambda: 1) == 1
        self.patch(  # type: ignore[no-untyped-call]
            threading.Thread, "start", start_none
        )
        # The first one runs these.
        assert [await worker.run(lambda: 2), await worker.run(lambda: 3)] == [2, 3]
