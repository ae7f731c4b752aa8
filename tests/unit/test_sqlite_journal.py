"""The journal of the history: groups are there when acknowledged, and are copied to the file."""

from __future__ import annotations

import os
import sqlite3
from functools import partial
from typing import Any

import pytest
from twisted.logger import capturedLogs

from pubsub.errors import HistoryUnavailable
from pubsub.store import commits
from pubsub.store.block import decode_block
from pubsub.store.retention import RetentionLimits
from pubsub.store.writer import JOURNAL_BYTES
from tests.unit.fakes import batch_of
from tests.unit.stores import JournalCase, keep_everything, messages, sql

BLOCKS = "SELECT base, count FROM blocks"
EPOCH = "12-00c0ffee"


class CommitTests(JournalCase):
    """Small groups"""

    async def test_they_are_not_in_the_file_when_they_are_acknowledged_but_safe(self) -> None:
        await self.commit(batch_of([b"1", b""], "a", [{"k": b"v"}, {}]), batch_of([b"22"], "b"))
        assert self.store.committed == 3
        assert sql(self.path, BLOCKS) == []
        found, damaged = await self.after(self.crashed())
        assert found == await self.read() != []
        assert damaged == ()

    async def test_they_get_there_by_themselves_as_one_block(self) -> None:
        self.patch(commits, "LAG", 0.01)  # type: ignore[no-untyped-call]
        with self.store.together():
            self.store.append(batch_of([b"1"], "a"))
            self.store.append(batch_of([b"2"], "b"))
        await self.until(lambda: sql(self.path, BLOCKS) == [(0, 2)])

    async def test_several_groups_are_one_block(self) -> None:
        await self.commit(*[batch_of([b"%d" % n, b"x" * n], "ab"[n % 2]) for n in range(5)])
        await self.filed()
        assert sql(self.path, BLOCKS) == [(0, 10)]
        assert await self.read(cold=True) == await self.read()

    async def test_ranges_are_of_the_file_and_of_what_is_not_there_yet(self) -> None:
        await self.commit(batch_of([b"1"], "a"), batch_of([b"2", b"3"], "b"))
        await self.filed()
        await self.commit(batch_of([b"4"], "b"), batch_of([b"5", b"6"], "c"))
        assert await self.range(0, 100, None) == [b"1", b"2", b"3", b"4", b"5", b"6"]
        assert await self.range(2, 5, frozenset("bc")) == [b"3", b"4", b"5"]
        assert await self.range(4, 5, frozenset("a")) == []
        assert await self.store.topics_in(0, 100) == {"a": (1, 6), "b": (3, 18), "c": (2, 12)}
        assert await self.store.topics_in(4, 5) == {"c": (1, 6)}
        assert await self.store.topics_in(1, 4) == {"b": (3, 18)}
        assert len(sql(self.path, BLOCKS)) == 1
        self.store.append(batch_of([b"not committed"], "d"))
        parcel = self.successResultOf(self.store.read_parcel(5, 100, None, 100))
        assert (parcel.stop, [names for _, names in parcel.blocks]) == (6, [frozenset("c")])

    async def range(self, start: int, stop: int, topics: frozenset[str] | None) -> list[bytes]:
        """The payloads of a range, from parcels, whose blocks may extend beyond it."""
        found: dict[int, bytes] = {}
        first = start
        while start < min(stop, self.store.committed):
            parcel = await self.store.read_parcel(start, stop, topics, 1)
            assert parcel.stop > start
            assert parcel.first == 0
            for block, names in parcel.blocks:
                for run in decode_block(block, names):
                    found |= enumerate(run.batch().payloads(), run.offset)
            start = parcel.stop
        return [payload for offset, payload in found.items() if first <= offset < stop]

    async def test_times_are_of_the_file_and_of_what_is_not_there_yet(self) -> None:
        stamps = [1000, 2000, 3000, 4000]
        for number, stamp in enumerate(stamps):
            batch = batch_of([b"x"])
            batch.timestamp = stamp
            await self.commit(batch)
            if number == 1:
                await self.filed()
        for offset, stamp in enumerate(stamps):
            assert await self.store.offset_at(stamp) == offset
            assert await self.store.offset_at(stamp + 1) == offset + 1
        assert sql(self.path, BLOCKS) == [(0, 2)]

    async def test_times_that_memory_has_let_go_of_are_found_in_the_file(self) -> None:
        for stamp in (1000, 2000, 3000):
            batch = batch_of([b"x"])
            batch.timestamp = stamp
            await self.commit(batch)
        self.forget_recent()
        late = batch_of([b"late"])
        late.timestamp = 4000
        self.store.append(late)
        assert await self.store.offset_at(2000) == 1

    async def test_what_memory_has_let_go_of_is_waited_for(self) -> None:
        await self.commit(batch_of([b"1"], "a"))
        for ask in (
            self.store.read(0, None, 100),
            self.store.read_parcel(0, 1, None, 100),
            self.store.topics_in(0, 1),
            self.store.offset_at(0),
        ):
            await ask
        free = self.hold()
        await self.commit(batch_of([b"2"], "b"))
        self.forget_recent()
        page = self.store.read(1, None, 100)
        parcel, topics = self.store.read_parcel(1, 2, None, 100), self.store.topics_in(1, 2)
        offset = self.store.offset_at(2**62)
        free.set()
        assert [m.payload for m in messages((await page).batches)] == [b"2"]
        assert [block.payloads for block, _ in (await parcel).blocks] == [b"12"]
        assert (await topics).keys() == {"b"}
        assert await offset == 2

    async def test_what_is_more_than_messages_takes_all_before_it_along(self) -> None:
        await self.commit(batch_of([b"old"], "a"), batch_of([b"other"], "b"))
        self.store.forget("a")
        self.store.append(batch_of([b"new"], "a"))
        self.store.put("t", "k", b"v")
        assert await self.stored()
        assert sql(self.path, BLOCKS) == [(0, 2), (2, 1)]
        assert [m.payload for m in await self.read(cold=True)] == [b"other", b"new"]
        assert sql(self.path, "SELECT key, value FROM metadata") == [("k", b"v")]

    async def test_so_does_a_large_one(self) -> None:
        await self.commit(batch_of([b"small"]), batch_of([bytes(JOURNAL_BYTES)]))
        assert sql(self.path, BLOCKS) == [(0, 1), (1, 1)]
        await self.commit(batch_of([b"small"]))
        assert len(sql(self.path, BLOCKS)) == 2
        assert len((await self.after(self.crashed()))[0]) == 3

    async def test_all_who_wait_are_told_in_order_wherever_it_goes(self) -> None:
        told: list[tuple[int, bool]] = []
        for number in range(60):
            size = JOURNAL_BYTES if number % 7 == 6 else 1
            self.store.append(batch_of([bytes(size)]))
            if number % 11 == 10:
                self.store.put("t", "k", b"%d" % number)
            self.store.when_stored(partial(_tell, told, number))
            if number % 4 == 3:
                await self.stored()
        assert await self.stored()
        assert told == [(number, True) for number in range(60)]

    async def test_commits_go_on_while_others_get_into_the_file(self) -> None:
        free = self.hold()
        await self.commit(batch_of([b"1"]))
        filed = self.filed()
        await self.commit(batch_of([b"2"]), batch_of([b"3"]))
        assert not filed.called
        found, damaged = await self.after(self.crashed())
        assert [m.payload for m in found] == [b"1", b"2", b"3"]
        assert damaged == ()
        free.set()
        await filed
        await self.filed()
        assert sql(self.path, BLOCKS) == [(0, 1), (1, 2)]

    async def test_nothing_is_acknowledged_behind_what_is_on_its_way(self) -> None:
        free = self.hold()
        self.store.append(batch_of([b"1"]))
        self.store.put("t", "k", b"v")
        first = self.stored()
        await self.until(lambda: self.store._commits._filing is not None)
        self.store.append(batch_of([b"2"]))
        second = self.stored()
        assert (await self.after(self.crashed()))[0] == []
        assert not second.called
        free.set()
        assert await first
        assert await second
        assert [m.payload for m in (await self.after(self.crashed()))[0]] == [b"1", b"2"]

    async def test_each_message_counts_for_retention_once(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("*", messages=2),)))
        await self.commit(batch_of([b"1"]))
        await self.filed()
        await self.store._thread.run(self.store._writer.tidy)
        await self.commit(batch_of([b"2"]))
        await self.filed()
        await self.commit(batch_of([b"3"]))
        await self.filed()
        await self.store._thread.run(self.store._writer.tidy)
        assert sql(self.path, BLOCKS) == [(1, 1), (2, 1)]


class FailureTests(JournalCase):
    """A journal that cannot be written"""

    def setUp(self) -> None:
        self.patch(commits, "RETRY", 0.02)  # type: ignore[no-untyped-call]
        super().setUp()

    async def test_without_the_journal_it_goes_into_the_file(self) -> None:
        await self.commit(batch_of([b"1"]))
        journal = self.store._writer._journal
        good, journal._files = journal._files, [os.open(os.devnull, os.O_RDONLY)] * 2
        self.addCleanup(os.close, journal._files[0])
        with capturedLogs() as events:
            await self.commit(batch_of([b"2"]), batch_of([b"3"]))
        assert len(events) == 1
        assert "journal" in str(events[0]["log_format"])
        assert sql(self.path, BLOCKS) == [(0, 2), (2, 1)]
        journal._files = good
        await self.until(lambda: self.store._commits._journal_pause is None)
        await self.commit(batch_of([b"4"]))
        assert len(sql(self.path, BLOCKS)) == 2
        found, _ = await self.after(self.crashed())
        assert [m.payload for m in found] == [b"1", b"2", b"3", b"4"]

    async def test_what_cannot_be_encoded_for_it_is_tried_again_in_the_file(self) -> None:
        await self.commit(batch_of([b"1"], "a"))
        builder = self.store._commits._segment.blocks[0][0]
        self.patch(builder, "add", _fail)  # type: ignore[no-untyped-call]
        with capturedLogs():
            await self.commit(batch_of([b"2"], "b"))
        assert sql(self.path, BLOCKS) == [(0, 1), (1, 1)]
        assert [m.payload for m in await self.read(cold=True)] == [b"1", b"2"]

    async def test_a_batch_that_cannot_be_kept_leaves_no_hole(self) -> None:
        await self.commit(batch_of([b"1"]))
        nameless: Any = {None: b""}
        with pytest.raises(AttributeError):
            self.store.append(batch_of([b"bad"], headers=[nameless]))
        await self.commit(batch_of([b"2"]))
        found, damaged = await self.after(self.crashed())
        assert [(m.offset, m.payload) for m in found] == [(0, b"1"), (1, b"2")]
        assert damaged == ()

    async def test_without_either_it_is_refused_and_made_up_for(self) -> None:
        journal, commit = self.store._writer._journal, self.store._writer.commit
        good, journal._files = journal._files, [os.open(os.devnull, os.O_RDONLY)] * 2
        self.addCleanup(os.close, journal._files[0])
        self.patch(self.store._writer, "commit", _fail)  # type: ignore[no-untyped-call]
        with capturedLogs():
            self.store.append(batch_of([b"1"]))
            assert not await self.stored()
        assert self.store.gate.shut is False
        with pytest.raises(HistoryUnavailable):
            self.store.append(batch_of([b"2"]))
        journal._files = good
        self.patch(self.store._writer, "commit", commit)  # type: ignore[no-untyped-call]
        await self.until(lambda: self.store.committed == 1)
        await self.commit(batch_of([b"3"]))
        found, _ = await self.after(self.crashed())
        assert [m.payload for m in found] == [b"1", b"3"]

    async def test_what_is_in_the_journal_stays_acknowledged_while_the_file_fails(self) -> None:
        commit = self.store._writer.commit
        await self.commit(batch_of([b"1"]))
        self.patch(self.store._writer, "commit", _fail)  # type: ignore[no-untyped-call]
        with capturedLogs():
            filed = self.filed()
            await self.until(lambda: self.store._commits.failing == "no disk")
        assert await self.store.topics_in(0, 1) == {"t": (1, 6)}
        found, _ = await self.after(self.crashed())
        assert [m.payload for m in found] == [b"1"]
        self.patch(self.store._writer, "commit", commit)  # type: ignore[no-untyped-call]
        await filed
        assert sql(self.path, BLOCKS) == [(0, 1)]

    async def test_it_stops_all_the_same_and_the_journal_keeps_it(self) -> None:
        await self.commit(batch_of([b"1"]))
        self.patch(self.store._writer, "commit", _fail)  # type: ignore[no-untyped-call]
        self.store.append(batch_of([b"2"]))
        with capturedLogs():
            await self.store.close()
        self.open()
        assert [m.payload for m in await self.read()] == [b"1", b"2"]

    async def test_a_stop_waits_for_all_that_is_under_way(self) -> None:
        free = self.hold()
        await self.commit(batch_of([b"1"]))
        filed = self.filed()
        self.store.append(batch_of([b"2"]))
        self.store.put("t", "k", b"v")
        self.store.append(batch_of([b"3"]))
        closed = self.store.close()
        free.set()
        await closed
        await filed
        self.open()
        assert [m.payload for m in await self.read()] == [b"1", b"2", b"3"]
        assert list(self.store.items("t")) == [("k", b"v")]

    async def test_a_disk_that_has_room_again_is_tried_once_more_at_a_stop(self) -> None:
        commit = self.store._writer.commit
        self.patch(self.store._writer, "commit", _fail)  # type: ignore[no-untyped-call]
        self.store.append(batch_of([b"1"]))
        self.store.put("t", "k", b"v")
        with capturedLogs():
            assert not await self.stored()
            self.patch(self.store._writer, "commit", commit)  # type: ignore[no-untyped-call]
            await self.store.close()
        self.open()
        assert [m.payload for m in await self.read()] == [b"1"]


def _tell(told: list[tuple[int, bool]], number: int, stored: bool) -> None:
    told.append((number, stored))


def _fail(*given: object) -> None:
    raise sqlite3.OperationalError("no disk")
