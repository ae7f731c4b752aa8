"""SqliteStore: messages are on disk when that is reported, and can be read again."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.batch import Batch, Page
from pubsub.errors import StartError
from pubsub.store import checkpoint, schema
from pubsub.store.block_reader import read_page
from pubsub.store.commits import BACKLOG
from pubsub.store.retention import Retention
from pubsub.store.run_log import RunLog
from pubsub.store.schema import APPLICATION, open_reader
from pubsub.store.sqlite import SqliteStore
from pubsub.store.writer import Group, Writer
from tests.profiles import examples
from tests.unit.fakes import Held, batch_of, scratch
from tests.unit.stores import RUN, StoreCase, Stored, keep_everything, messages, sql
from tests.unit.test_block import TOPICS, batches


class WriteTests(StoreCase):
    """Appending"""

    def test_offsets_are_given_at_once_and_in_order(self) -> None:
        first, second = batch_of([b"a", b"b"]), batch_of([b"c"])
        self.store.append(first)
        self.store.append(second)
        assert (first.offset, second.offset) == (0, 2)
        assert self.store.next_offset == 3
        assert self.store.committed == 0

    async def test_what_is_committed_is_in_the_file_for_anybody(self) -> None:
        await self.put(batch_of([b"a", b"b"]), batch_of([b"c"], "u"))
        assert self.store.committed == 3
        connection = open_reader(self.path)
        self.addCleanup(connection.close)
        page = read_page(connection, 0, None, 1000)
        assert [m.payload for m in messages(page.batches)] == [b"a", b"b", b"c"]

    async def test_a_group_is_one_block(self) -> None:
        await self.put(*[batch_of([b"x"]) for _ in range(10)])
        assert sql(self.path, "SELECT base, count FROM blocks") == [(0, 10)]

    async def test_a_large_group_is_several(self) -> None:
        await self.put(*[batch_of([b"x" * 100_000]) for _ in range(10)])
        rows = sql(self.path, "SELECT base, count FROM blocks")
        assert len(rows) == 4
        assert [base + count for base, count in rows] == [3, 6, 9, 10]

    async def test_those_who_wait_are_told_in_order(self) -> None:
        told: list[str] = []
        self.store.append(batch_of([b"1"]))
        self.store.when_stored(lambda ok: told.append(f"1 {ok}"))
        self.store.append(batch_of([b"2"]))
        self.store.when_stored(lambda ok: told.append(f"2 {ok}"))
        await self.stored()
        assert told == ["1 True", "2 True"]

    def test_nobody_waits_for_nothing(self) -> None:
        assert self.successResultOf(self.stored()) is True

    async def test_bytes_are_not_waited_with(self) -> None:
        await self.reopen(keep_everything(interval=30.0, nbytes=1000))
        self.store.append(batch_of([b"x" * 1000]))
        await self.stored()
        assert self.store.committed == 1

    async def test_who_waits_does_not_wait_long(self) -> None:
        await self.reopen(keep_everything(interval=30.0))
        for _ in range(3):
            self.store.append(batch_of([b"x"]))
            assert await self.stored()
        assert self.store.committed == 3

    async def test_publishers_wait_while_too_much_does(self) -> None:
        held = Held()
        self.store.append(batch_of([b"x" * BACKLOG]))
        assert self.store.gate.shut
        self.store.gate.wait(held)
        assert held.reasons
        await self.stored()
        assert not self.store.gate.shut
        assert not held.reasons


class CheckpointTests(StoreCase):
    """Checkpoints"""

    async def test_sqlites_log_begins_anew_while_commits_go_on(self) -> None:
        self.patch(checkpoint, "WAL_BYTES", 200_000)  # type: ignore[no-untyped-call]
        await self.put(batch_of([b"0"]))
        begun, count = self.salt(), 1
        while self.salt() == begun:
            await self.put(batch_of([b"%d" % count]))
            count += 1
        assert [m.payload for m in await self.read(cold=True)] == [b"%d" % n for n in range(count)]

    def salt(self) -> bytes:
        """The salt, which changes each time the log restarts (SQLite's file format, 4.1)."""
        with Path(f"{self.path}-wal").open("rb") as file:
            return file.read(24)[16:]

    async def test_a_checkpoint_that_fails_is_told_and_not_the_last(self) -> None:
        self.patch(checkpoint, "WAL_BYTES", 1)  # type: ignore[no-untyped-call]
        broken = [sqlite3.OperationalError("disk I/O error")]

        def opened(path: Path) -> sqlite3.Connection:
            if broken:
                raise broken.pop()
            return schema.open_checkpointer(path)

        self.patch(checkpoint, "open_checkpointer", opened)  # type: ignore[no-untyped-call]
        with capturedLogs() as events:
            await self.put(batch_of([b"1"]))
            await self.until(lambda: not self.store._checkpoints._running)
        assert [str(event["reason"]) for event in events] == ["disk I/O error"]
        await self.put(batch_of([b"2"]))
        await self.until(lambda: self.store._checkpoints._connection is not None)


class RestartTests(StoreCase):
    """Opening the same file again"""

    async def test_offsets_go_on(self) -> None:
        await self.put(batch_of([b"a", b"b"]))
        await self.reopen()
        assert (self.store.first_offset, self.store.next_offset) == (0, 2)
        await self.put(batch_of([b"c"]))
        assert [(m.offset, m.payload) for m in await self.read()] == [
            (0, b"a"),
            (1, b"b"),
            (2, b"c"),
        ]

    async def test_what_was_appended_last_is_committed_on_closing(self) -> None:
        self.store.append(batch_of([b"last"]))
        await self.reopen()
        assert [m.payload for m in await self.read()] == [b"last"]

    async def test_each_opening_is_an_epoch(self) -> None:
        epochs = [self.store.epoch]
        await self.put(batch_of([b"a", b"b"]))
        for _ in range(2):
            await self.reopen()
            epochs.append(self.store.epoch)
        assert len(set(epochs)) == 3
        assert [row[0] for row in sql(self.path, "SELECT begins FROM epochs")] == [0, 2, 2]

    async def test_metadata_comes_back(self) -> None:
        self.store.put("t", "a", b"1")
        self.store.put("t", "b", lambda: b"2")
        self.store.put("t", "c", b"3")
        self.store.put("u", "a", b"4")
        await self.stored()
        self.store.delete("t", "a")
        self.store.put("t", "c", b"5")
        await self.reopen()
        assert sorted(self.store.items("t")) == [("b", b"2"), ("c", b"5")]
        assert list(self.store.items("u")) == [("a", b"4")]
        assert list(self.store.items("none")) == []

    async def test_the_summary_says_where_and_how_much(self) -> None:
        await self.put(batch_of([b"a", b"b"]))
        await self.reopen()
        assert str(self.path) in self.store.summary
        assert "offsets 0 to 2" in self.store.summary
        assert "not closed" not in self.store.summary

    async def test_a_topic_that_ended_has_no_past(self) -> None:
        await self.put(batch_of([b"old"], "t"), batch_of([b"other"], "u"))
        self.store.append(batch_of([b"older"], "t"))
        self.store.forget("t")
        self.store.append(batch_of([b"new"], "t"))
        payloads = [m.payload for m in await self.read()]
        assert payloads == [b"other"]
        await self.stored()
        for cold in (False, True):
            found = [m.payload for m in await self.read(topics="t", cold=cold)]
            assert found == [b"new"], cold
        await self.reopen()
        assert [m.payload for m in await self.read()] == [b"other", b"new"]


class OpenTests(SynchronousTestCase):
    """Files that can be used, and files that cannot"""

    def refused(self, path: os.PathLike[str]) -> str:
        store = SqliteStore(scratch(self) / path, reactor)
        with pytest.raises(StartError) as raised:
            store.open(RUN)
        error = raised.value
        assert "\n" not in str(error)
        return str(error)

    def test_something_else_is_left_alone(self) -> None:
        path = scratch(self) / "h.db"
        path.write_bytes(b"not a database" * 1000)
        assert "not a database" in self.refused(path)
        assert path.read_bytes().startswith(b"not a database")

    def test_anothers_database_is_left_alone(self) -> None:
        path = scratch(self) / "h.db"
        sql(path, "CREATE TABLE mine (x)")
        assert "not a history of this broker" in self.refused(path)

    def test_a_newer_version_is_left_alone(self) -> None:
        path = scratch(self) / "h.db"
        sql(path, "CREATE TABLE mine (x)")
        sql(path, f"PRAGMA application_id = {APPLICATION}")
        store = SqliteStore(path, reactor)
        sql(path, "PRAGMA user_version = 99")
        with pytest.raises(StartError) as raised:
            store.open(RUN)
        error = raised.value
        assert "version 99" in str(error)

    def test_a_directory_is_none(self) -> None:
        assert "cannot use" in self.refused(scratch(self))


class ModeTests(StoreCase):
    """Permissions and locks"""

    async def test_it_is_nobody_elses_to_read(self) -> None:
        await self.put(batch_of([b"x"]))
        for suffix in ("", "-wal", "-shm", "-lock"):
            mode = os.stat(f"{self.path}{suffix}").st_mode
            assert stat.S_IMODE(mode) & 0o077 == 0, suffix

    def test_a_second_broker_is_told_who_has_it(self) -> None:
        second = SqliteStore(self.path, reactor)
        with pytest.raises(StartError) as raised:
            second.open(RUN)
        error = raised.value
        assert f"in use by another broker (process {os.getpid()})" in str(error)

    async def test_it_is_free_when_the_first_has_closed(self) -> None:
        await self.reopen()
        assert self.store.next_offset == 0


class ReadTests(StoreCase):
    """Pages"""

    async def test_readers_see_what_is_committed_and_others_more(self) -> None:
        await self.put(batch_of([b"a"]))
        self.store.append(batch_of([b"b"]))
        shown = await self.store.read(0, None, 1000)
        fresh = await self.store.read(0, None, 1000, fresh=True)
        assert [m.payload for m in messages(shown.batches)] == [b"a"]
        assert [m.payload for m in messages(fresh.batches)] == [b"a", b"b"]
        assert (shown.next_offset, fresh.next_offset) == (1, 2)

    async def test_at_the_end_there_is_nothing_yet(self) -> None:
        assert await self.store.read(0, None, 100) == Page([], 0)
        await self.put(batch_of([b"x"]))
        for _ in range(2):
            assert await self.store.read(1, None, 100) == Page([], 1)
            self.forget_recent()

    async def test_a_page_ends_within_a_block(self) -> None:
        await self.put(*[batch_of([b"x" * 1000]) for _ in range(20)])
        self.forget_recent()
        page = await self.store.read(3, None, 5000)
        assert [batch.offset for batch in page.batches] == [3, 4, 5, 6]
        assert page.next_offset == 7

    async def test_a_rare_topic_is_found_far_away(self) -> None:
        for number in range(300):
            self.store.append(batch_of([b"%d" % number], f"many/{number % 3}"))
            if number % 3 == 0:
                await self.stored()
        await self.put(batch_of([b"rare"], "rare"))
        self.forget_recent()
        page = await self.store.read(0, frozenset(["rare"]), 100)
        assert [m.payload for m in messages(page.batches)] == [b"rare"]

    async def test_many_topics_are_found_without_the_index(self) -> None:
        for number in range(200):
            self.store.append(batch_of([b"%d" % number], f"many/{number}"))
        await self.stored()
        names = [f"many/{number}" for number in range(100, 200)]
        found = await self.read(topics=names, cold=True)
        assert [m.offset for m in found] == list(range(100, 200))


class ModelTests(SynchronousTestCase):
    """Compared with a plain list"""

    @settings(examples(0.25), suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.lists(batches(), min_size=1, max_size=4), max_size=6),
        st.integers(0, 60),
        st.none() | st.frozensets(st.sampled_from([*TOPICS, "absent"])),
        st.integers(1, 2000),
    )
    def test_pages_of_the_file_give_what_was_committed_once_and_in_order(
        self,
        groups: list[list[Batch]],
        offset: int,
        topics: frozenset[str] | None,
        page_bytes: int,
    ) -> None:
        path = scratch(self) / "h.db"
        writer = Writer(path, RUN, Retention(()))
        model: list[Stored] = []
        log = RunLog(2**62, 2**30)
        for group in groups:
            runs = [run for run in map(log.append, group) if run is not None]
            writer.commit(Group(runs))
            model += messages(group)
        assert [m.offset for m in model] == list(range(len(model)))
        connection = open_reader(path)
        found: list[Stored] = []
        at = offset
        while at < len(model):
            page = read_page(connection, at, topics, page_bytes)
            assert page.next_offset > at
            assert not page.damaged
            found += messages(page.batches)
            at = page.next_offset
        connection.close()
        writer.close()
        assert found == [m for m in model[offset:] if topics is None or m.topic in topics]
