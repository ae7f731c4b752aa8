"""Commits that take several ticks: all of what is in one is in the log, or nothing."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

import pytest
from twisted.internet import reactor
from twisted.internet.task import deferLater

from pubsub.errors import HistoryUnavailable
from pubsub.store.commits import commit_state_machine
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.shared_store import SharedStore
from tests.unit.fakes import batch_of
from tests.unit.logs import RUN, StoreCase, keep_everything, numbered


class LongCommitTests(StoreCase):
    """A commit and what happens meanwhile"""

    def setUp(self) -> None:
        self.patch(commit_state_machine, "RETRY_SECONDS", 0.02)
        super().setUp()

    def begin(self) -> None:
        """Begin a commit."""
        self.store.begin_commit(self.end)

    def end(self) -> None:
        """Do the rest of it."""
        self.go_on(8, 9)
        self.store.put("commits", "q", b"1")
        self.store.end_commit()

    def go_on(self, start: int, stop: int) -> None:
        """Append messages of it in one tick."""
        with self.store.continuing():
            self.store.append(numbered(start, stop))

    async def some_ticks(self) -> None:
        """Let time pass for timers and threads."""
        for _ in range(5):
            await deferLater(reactor, 0.001)

    async def test_a_crash_leaves_all_or_nothing(self) -> None:
        await self.put(batch_of([b"before"]))
        self.begin()
        self.go_on(0, 4)
        self.store.when_stored(lambda ok: None)
        await self.some_ticks()
        self.go_on(4, 8)
        await self.some_ticks()
        found, _ = await self.after(self.crashed())
        assert [one.payload for one in found] == [b"before"]
        assert (self.store.committed, self.store.next_offset) == (1, 9)
        self.end()
        assert await self.stored()
        found, _ = await self.after(self.crashed())
        assert [one.payload for one in found] == [b"before", *[b"%d" % n for n in range(9)]]

    async def test_a_step_cannot_end_it(self) -> None:
        self.begin()
        commits = self.store.atomic_commits
        with pytest.raises(RuntimeError, match="its own steps"), self.store.continuing():
            commits.finish()
        assert self.store.next_offset == 0
        commits.finish()
        assert await self.stored()
        assert self.store.next_offset == 1

    async def test_it_is_not_waited_for_if_it_cannot_end(self) -> None:
        self.store.begin_commit(lambda: None)
        with pytest.raises(RuntimeError, match="has not ended"):
            self.store.atomic_commits.finish()
        self.end()
        assert await self.stored()

    async def test_all_is_in_one_record(self) -> None:
        written: list[int] = []
        write = LogWriter._write_piece

        def note(writer: LogWriter, base: int, stop: int, *rest: Any) -> None:
            written.append(stop - base)
            write(writer, base, stop, *rest)

        self.patch(LogWriter, "_write_piece", note)
        self.begin()
        self.go_on(0, 4)
        self.store.append(batch_of([b"other"], "u"))
        self.store.forget("u")
        with self.store.together():
            self.store.put("t", "k", b"v")
        self.go_on(4, 8)
        self.end()
        assert await self.stored()
        assert written == [10]

    async def test_a_topic_that_ends_meanwhile(self) -> None:
        await self.put(batch_of([b"before"], "t"))
        self.begin()
        self.go_on(0, 4)
        self.store.forget("t")
        self.go_on(4, 8)
        self.end()
        assert await self.stored()
        expected = [b"%d" % n for n in range(9)]
        assert [one.payload for one in await self.read()] == expected
        assert [one.payload for one in await self.read(cold=True)] == expected
        await self.reopen()
        assert [one.payload for one in await self.read()] == expected
        assert dict(self.store.items("commits")) == {"q": b"1"}

    async def test_a_disk_that_fails_meanwhile(self) -> None:
        real = os.pwritev

        def fail(*given: object) -> int:
            raise OSError(28, "No space left on device")

        await self.put(batch_of([b"before"]))
        self.store.append(batch_of([b"x"]))
        self.patch(os, "pwritev", fail)
        self.store.when_stored(lambda ok: None)
        await deferLater(reactor, 0)
        self.begin()
        self.go_on(0, 4)
        await self.until(lambda: self.store.trouble is not None)
        with pytest.raises(HistoryUnavailable):
            self.store.append(batch_of([b"refused"]))
        with pytest.raises(HistoryUnavailable):
            self.begin()
        self.go_on(4, 8)
        self.end()
        assert await self.stored() is False
        self.patch(os, "pwritev", real)
        await self.until(lambda: self.store.committed == 11)
        found, _ = await self.after(self.crashed())
        expected = [b"before", b"x", *[b"%d" % n for n in range(9)]]
        assert [one.payload for one in found] == expected

    async def test_a_store_that_is_closed_meanwhile(self) -> None:
        store = self.store
        self.begin()
        self.go_on(0, 8)
        await self.reopen()
        with pytest.raises(HistoryUnavailable, match="stops"):
            store.begin_commit(self.end)
        assert self.store.next_offset == 9
        assert dict(self.store.items("commits")) == {"q": b"1"}

    async def test_many_runs_are_freed_after_they_are_written(self) -> None:
        for number in range(2500):
            self.store.append(numbered(number, number + 1))
        group = self.store._commits._group
        assert len(group.runs) == 2500
        commits = Mock()
        self.store.watch_commits(commits)
        assert await self.stored()
        assert [run[0] for run in group.runs] == [0, 2499]
        assert commits.call_args.args[0] == 2500
        assert len(await self.read(nbytes=100_000, cold=True)) == 2500


class SharedTests(StoreCase):
    """A history that brokers share"""

    async def test_messages_of_others_end_it_before(self) -> None:
        await self.store.close()
        self.store = store = SharedStore(self.path, reactor, keep_everything())
        store.open(RUN)
        store.replication = replication = Mock()
        replication.trouble.return_value = None

        def end() -> None:
            with store.continuing():
                store.append(numbered(4, 8))
            store.end_commit()

        store.begin_commit(end)
        replication.trouble.return_value = "the engine is away"
        with store.continuing():
            store.append(numbered(0, 4))
        with pytest.raises(HistoryUnavailable, match="engine"):
            store.append(numbered(0, 4))
        with store.importing():
            other = numbered(100, 101)
            other.run = 77
            store.append(other)
        pieces = store._commits._group.pieces(0)
        assert [(base, stop) for base, stop, _, _ in pieces] == [(0, 8), (8, 9)]
        with pytest.raises(HistoryUnavailable, match="engine"):
            store.begin_commit(end)
