"""SqliteStore over time: expiry, merging, and failures of the disk."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.batch import Batch, Page
from pubsub.errors import HistoryUnavailable
from pubsub.store import commits, schema, writer
from pubsub.store.block_reader import read_page
from pubsub.store.retention import RETENTION, RetentionLimits
from pubsub.store.schema import open_reader
from pubsub.store.sqlite import SqliteOptions, SqliteStore
from tests.unit.fakes import Held, batch_of, scratch
from tests.unit.stores import StoreCase, keep_everything, sql

MICROSECONDS = 1_000_000


def aged(payload: bytes, topic: str = "t", seconds: float = 0.0) -> Batch:
    """A batch of one message, published ``seconds`` ago."""
    batch = batch_of([payload], topic)
    batch.timestamp = int((time.time() - seconds) * MICROSECONDS)
    return batch


class Tidied(StoreCase):
    """A store with housekeeping on request."""

    def open(self, options: SqliteOptions | None = None) -> SqliteStore:
        store = super().open(options)
        store._maintenance.stop()
        return store

    async def tidy(self) -> None:
        """Run housekeeping until nothing is left to do."""
        more = True
        while more:
            first, more = await self.store._thread.run(self.store._writer.tidy)
            self.store._maintained(first)
        self.forget_recent()

    async def left(self, topic: str | None = None) -> list[bytes]:
        """The payloads that can be read."""
        return [m.payload for m in await self.read(0, topic, cold=True)]


class RetentionTests(Tidied):
    """Expiry"""

    async def test_by_age(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("*", seconds=60),)))
        await self.one_each(aged(b"1", seconds=300), aged(b"2", seconds=61), aged(b"3"))
        await self.tidy()
        assert await self.left() == [b"3"]
        assert self.store.first_offset == 2

    async def test_by_number(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("*", messages=3),)))
        await self.one_each(*[aged(b"%d" % n) for n in range(10)])
        await self.tidy()
        assert await self.left() == [b"7", b"8", b"9"]

    async def test_by_bytes(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("*", nbytes=2500),)))
        await self.one_each(*[aged(b"%d" % n * 1000) for n in range(5)])
        await self.tidy()
        assert await self.left() == [b"3" * 1000, b"4" * 1000]

    async def test_senders_and_headers_are_bytes_too(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("*", nbytes=2500),)))
        headed = {"key": b"v" * 997}
        empty = [aged(b""), aged(b""), aged(b""), aged(b"")]
        for number, batch in enumerate(empty):
            batch.sender = b"%d" % number * (1000 if number % 2 else 0)
            batch.headers = None if number % 2 else [headed]
        await self.one_each(*empty)
        await self.tidy()
        assert [message.offset for message in await self.read(cold=True)] == [2, 3]

    async def test_a_block_of_which_little_is_left_is_written_anew_without_its_senders(
        self,
    ) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("big", messages=1),)))
        large = aged(b"", "big")
        large.sender = b"s" * 100_000
        self.store.append(large)
        self.store.append(aged(b"small", "small"))
        await self.stored()
        await self.put(aged(b"newer", "big"))
        await self.tidy()
        assert sql(self.path, "SELECT length(names) < 1000 FROM blocks") == [(1,), (1,)]

    async def test_each_pattern_has_its_own_and_the_first_rules(self) -> None:
        rules = (
            RetentionLimits("a/*", messages=1),
            RetentionLimits("*/x", messages=2),
            RetentionLimits("b/*", messages=3),
        )
        await self.reopen(keep_everything(retention=rules))
        for number in range(5):
            for topic in ("a/x", "b/x", "b/y"):
                self.store.append(aged(b"%d" % number, topic))
            await self.one_each(aged(b"%d" % number, "c"))
        await self.tidy()
        topics = ("a/x", "b/x", "b/y", "c")
        kept = {topic: len(await self.read(0, [topic], cold=True)) for topic in topics}
        assert kept == {"a/x": 1, "b/x": 2, "b/y": 3, "c": 5}

    async def test_what_is_left_of_a_block_is_written_anew(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("big", messages=1),)))
        self.store.append(aged(b"x" * 100_000, "big"))
        self.store.append(aged(b"small", "small"))
        await self.stored()
        await self.put(aged(b"newer", "big"))
        await self.tidy()
        assert await self.left() == [b"small", b"newer"]
        assert sql(self.path, "SELECT length(payloads) FROM blocks") == [(5,), (5,)]
        assert [m.offset for m in await self.read()] == [1, 2]

    async def test_an_expired_log_does_not_start_anew(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("*", seconds=1),)))
        await self.one_each(aged(b"1", seconds=300), aged(b"2", seconds=300))
        await self.tidy()
        assert (self.store.first_offset, self.store.next_offset) == (2, 2)
        await self.reopen()
        assert (self.store.first_offset, self.store.next_offset) == (2, 2)

    async def test_the_space_is_given_back(self) -> None:
        self.patch(writer, "_FREE_PAGES", 20)  # type: ignore[no-untyped-call]
        await self.reopen(keep_everything(retention=(RetentionLimits("*", messages=1),)))
        await self.one_each(*[aged(b"x" * 50_000) for _ in range(60)])
        await self.filed()
        await self.tidy()
        await self.reopen()
        assert self.path.stat().st_size < 1_000_000

    async def test_what_ended_goes_at_once(self) -> None:
        await self.one_each(aged(b"1", "gone"), aged(b"2", "stays"))
        self.store.forget("gone")
        await self.put(aged(b"3", "gone"))
        await self.tidy()
        assert await self.left() == [b"2", b"3"]
        assert sql(self.path, "SELECT base FROM blocks") == [(1,), (2,)]
        # Its name is removed too, and its id may be assigned again.
        assert sql(self.path, "SELECT name FROM topics ORDER BY name") == [("gone",), ("stays",)]

    async def test_what_ended_counts_no_more(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("*", messages=3),)))
        await self.one_each(*[aged(b"%d" % n, "gone") for n in range(3)])
        await self.tidy()
        self.store.forget("gone")
        await self.one_each(aged(b"a"), aged(b"b"), aged(b"c"), aged(b"d"))
        await self.tidy()
        assert await self.left() == [b"b", b"c", b"d"]

    async def test_whoever_gets_its_number_has_rules_of_its_own(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("*", messages=3),)))
        # More than one step removes.
        await self.one_each(*[aged(b"%d" % n, "gone") for n in range(250)])
        self.store.forget("gone")
        await self.stored()
        await self.tidy()
        await self.one_each(*[aged(b"%d" % n, "heir") for n in range(5)])
        assert sql(self.path, "SELECT * FROM topics") == [(1, "heir")]
        await self.tidy()
        assert await self.left() == [b"2", b"3", b"4"]


class MergeTests(Tidied):
    """Merging"""

    async def test_neighbours_become_one(self) -> None:
        await self.one_each(*[aged(b"%d" % n, f"t{n % 3}", 61) for n in range(16)])
        before = await self.read()
        await self.tidy()
        assert sql(self.path, "SELECT base, count FROM blocks") == [(0, 16)]
        assert await self.read(cold=True) == before
        assert await self.read(7, ["t1"], cold=True) == [m for m in before[7:] if m.topic == "t1"]

    async def test_a_step_is_a_few_and_what_became_of_them_is_merged_again_later(self) -> None:
        batches = [aged(b"%d" % n, f"t{n % 3}", 601) for n in range(16 * 16)]
        await self.one_each(*batches)
        before = await self.read()
        await self.store._thread.run(self.store._writer.tidy)
        assert sql(self.path, "SELECT base, count FROM blocks LIMIT 2") == [(0, 16), (16, 1)]
        await self.tidy()
        assert sql(self.path, "SELECT base, count FROM blocks") == [(0, 256)]
        assert await self.read(cold=True) == before

    async def test_the_last_ones_wait_for_more(self) -> None:
        await self.one_each(*[aged(b"%d" % n, seconds=30) for n in range(12)])
        await self.tidy()
        assert sql(self.path, "SELECT count(*) FROM blocks") == [(12,)]
        await self.one_each(*[aged(b"%d" % n, seconds=30) for n in range(12)])
        await self.tidy()
        assert sql(self.path, "SELECT base, count FROM blocks LIMIT 2") == [(0, 16), (16, 1)]

    async def test_what_the_index_alone_knows_of_stays_reported(self) -> None:
        await self.one_each(*[aged(b"%d" % n, seconds=90) for n in range(20)])
        sql(self.path, "DELETE FROM blocks WHERE base = 7")
        await self.tidy()
        page = await self.store.read(0, None, 10**6)
        assert page.damaged == ((7, 8),)
        assert sum(b.count for b in page.batches) == 19

    async def test_what_is_new_or_large_or_far_apart_stays(self) -> None:
        ages = [8000.0] * 12 + [3000.0] * 12 + [2.0] * 12
        await self.one_each(*[aged(b"%d" % n, seconds=age) for n, age in enumerate(ages)])
        await self.put(aged(b"x" * 300_000, seconds=1.0))
        await self.tidy()
        assert sql(self.path, "SELECT count(*) FROM blocks") == [(15,)]

    async def test_a_large_one_at_the_end(self) -> None:
        await self.one_each(*[aged(b"%d" % n, seconds=90) for n in range(12)])
        await self.put(aged(b"x" * 300_000, seconds=90))
        await self.tidy()
        assert sql(self.path, "SELECT base, count FROM blocks") == [(0, 12), (12, 1)]

    async def test_what_had_expired_does_not_come_back(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("a", messages=1),)))
        for number in range(20):
            self.store.append(aged(b"a%d" % number, "a", 60))
            await self.one_each(aged(b"b%d" % number, "b", 60))
        await self.tidy()
        assert len(sql(self.path, "SELECT base FROM blocks")) < 20
        assert await self.left() == [*[b"b%d" % n for n in range(19)], b"a19", b"b19"]
        await self.put(aged(b"a20", "a"))
        await self.tidy()
        assert [m.payload for m in await self.read(0, ["a"])] == [b"a20"]

    async def test_damaged_ones_are_left_as_they_are(self) -> None:
        await self.one_each(*[aged(b"%d" % n, seconds=60) for n in range(30)])
        sql(self.path, "UPDATE blocks SET payloads = x'00' WHERE base = 7")
        await self.tidy()
        page = await self.store.read(0, None, 10**6)
        assert page.damaged == ((7, 8),)
        assert sum(b.count for b in page.batches) == 29


class FullTests(StoreCase):
    """A full disk"""

    def setUp(self) -> None:
        self.patch(commits, "RETRY", 0.02)  # type: ignore[no-untyped-call]
        super().setUp()

    def fill(self) -> None:
        """Limit the file to its present pages."""
        (pages,) = self.pragma("PRAGMA page_count")
        self.pragma(f"PRAGMA max_page_count = {pages}")

    def pragma(self, text: str) -> tuple[int, ...]:
        found: tuple[int, ...] = self.store._writer.connection.execute(text).fetchone()
        return found

    async def test_publishers_are_told_and_it_clears_by_itself(self) -> None:
        await self.put(batch_of([b"before"]))
        self.fill()
        self.store.append(batch_of([b"x" * 100_000]))
        assert await self.stored() is False
        with pytest.raises(HistoryUnavailable, match="full"):
            self.store.append(batch_of([b"refused"]))
        assert await self.stored() is False
        assert self.store.failures
        assert (self.store.committed, self.store.next_offset) == (1, 2)
        # Committed messages can be read meanwhile.
        assert [m.payload for m in await self.read()] == [b"before"]
        self.pragma("PRAGMA max_page_count = 1000000")
        await self.until(lambda: self.store.committed == 2)
        await self.put(batch_of([b"after"]))
        assert [len(m.payload) for m in await self.read()] == [6, 100_000, 5]

    async def test_nobody_is_left_waiting(self) -> None:
        held = Held()
        self.fill()
        self.store.append(batch_of([b"x" * 17_000_000]))
        self.store.gate.wait(held)
        assert await self.stored() is False
        assert not held.reasons
        self.pragma("PRAGMA max_page_count = 1000000")
        await self.until(lambda: self.store.committed == 1)

    async def test_metadata_waits_for_better_times(self) -> None:
        self.fill()
        self.store.append(batch_of([b"x" * 100_000]))
        await self.stored()
        self.store.put("t", "k", b"v")
        self.pragma("PRAGMA max_page_count = 1000000")
        await self.until(lambda: self.store.committed == 1)
        await self.reopen()
        assert list(self.store.items("t")) == [("k", b"v")]

    async def test_it_closes_all_the_same(self) -> None:
        self.fill()
        self.store.append(batch_of([b"x" * 100_000]))
        await self.stored()
        await self.reopen()
        assert self.store.next_offset == 0


class DamageTests(StoreCase):
    """Damaged blocks"""

    async def harm(self, statement: str) -> None:
        for number in range(5):
            await self.one_each(batch_of([b"%d" % number] * 10))
        await self.store.close()
        sql(self.path, statement)
        sql(self.path, "UPDATE state SET clean = 0")
        self.open()

    async def test_it_is_said_which_messages_and_the_others_are_read(self) -> None:
        for statement in (
            "UPDATE blocks SET payloads = zeroblob(10) WHERE base = 20",
            "UPDATE blocks SET runs = x'' WHERE base = 20",
            "DELETE FROM blocks WHERE base = 20",
        ):
            await self.harm(statement)
            page = await self.store.read(0, None, 10**6)
            assert page.damaged == ((20, 30),), statement
            assert [b.offset for b in page.batches] == [0, 10, 30, 40]
            page = await self.store.read(25, None, 10**6)
            assert page.damaged == ((25, 30),)
            await self.store.close()
            self.path.unlink()
            self.open()

    async def test_who_has_read_all_of_it_is_not_told_again(self) -> None:
        await self.harm("UPDATE blocks SET runs = x'' WHERE base = 40")
        connection = open_reader(self.path)
        self.addCleanup(connection.close)
        assert read_page(connection, 49, None, 10**6) == Page([], 50, ((49, 50),))
        assert read_page(connection, 50, None, 10**6) == Page([], 50)

    async def test_offsets_are_not_given_out_again(self) -> None:
        await self.harm("DELETE FROM blocks WHERE base >= 20")
        assert self.store.next_offset == 50
        await self.put(batch_of([b"new"]))
        page = await self.store.read(0, None, 10**6)
        assert page.damaged == ((20, 30), (30, 40), (40, 50))
        assert [b.offset for b in page.batches] == [0, 10, 50]


class UpgradeTests(SynchronousTestCase):
    """Upgrades of the file"""

    def setUp(self) -> None:
        self.path = scratch(self) / "h.db"
        schema.open_writer(self.path).close()
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        self.addCleanup(self.connection.close)
        self.done: list[int] = []

    def step(self, number: int) -> Callable[[sqlite3.Connection], None]:
        def upgrade(connection: sqlite3.Connection) -> None:
            self.done.append(number)
            connection.execute(f"CREATE TABLE v{number} (x)")
            if number == 4:
                raise RuntimeError("no further")

        return upgrade

    def version(self) -> int:
        (found,) = self.connection.execute("PRAGMA user_version").fetchone()
        return int(found)

    def test_each_step_that_is_missing_is_done_once(self) -> None:
        steps = [self.step(2), self.step(3)]
        schema.upgrade(self.connection, 1, steps)
        assert (self.done, self.version()) == ([2, 3], 3)
        schema.upgrade(self.connection, 3, steps)
        assert self.done == [2, 3]

    def test_a_step_that_fails_leaves_the_version_before(self) -> None:
        with pytest.raises(RuntimeError):
            schema.upgrade(self.connection, 1, [self.step(2), self.step(3), self.step(4)])
        assert self.version() == 3
        assert sql(self.path, "SELECT name FROM sqlite_master WHERE name = 'v4'") == []

    def test_a_new_file_is_of_the_newest_version(self) -> None:
        assert self.version() == schema.VERSION


class SettingTests(SynchronousTestCase):
    """--retention"""

    def test_limits_of_a_pattern(self) -> None:
        assert RETENTION.parse("*=age:7d,bytes:10G") == (
            RetentionLimits("*", 7 * 86400, 10 * 1024**3),
        )
        assert RETENTION.parse(["a=b=age:90s", "*=messages:5"]) == (
            RetentionLimits("a=b", 90),
            RetentionLimits("*", messages=5),
        )

    def test_what_is_none(self) -> None:
        for text in (
            "", "*", "*=", "=age:7d", "*=age", "*=age:7", "*=age:d", "*=age:0d", "*=7d",
            "*=bytes:x", "*=messages:-1", "*=age:7d,age:8d", "*=age:7d,", 7, ["*"], [7],
        ):  # fmt: skip
            with pytest.raises(ValueError, match="expected"):
                RETENTION.parse(text)
