"""Ranges of the file: parcels, Arrow batches, offsets by time, topics."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.batch import Batch
from pubsub.store import arrow, block_ranges
from pubsub.store.block import Block, encode_block
from pubsub.store.block_ranges import offset_at, read_parcel, topics_in
from pubsub.store.block_reader import SCAN, read_bounds
from pubsub.store.epochs import continues
from pubsub.store.merge import insert_block
from pubsub.store.retention import FORGOTTEN
from pubsub.store.schema import create
from pubsub.store.stored_runs import record_of, topics_of
from tests.profiles import examples
from tests.unit.fakes import batch_of
from tests.unit.test_arrow import row, rows_of, without_headers
from tests.unit.test_block import batches

RUN = 77


def read_arrow(
    connection: Any, start: int, stop: int, topics: frozenset[str] | None, headers: bool = False
) -> Iterator[arrow.BatchOrGap]:
    """Read a range in parcels."""
    stop = min(stop, read_bounds(connection)[1])
    while start < stop:
        parcel = block_ranges.read_parcel(connection, start, stop, topics, 4 * 1024**2)
        if topics is None:
            parcel = parcel.of(lambda name: not name.startswith("$SYS/"))
        yield from arrow.batches(parcel, headers)
        if parcel.damaged is not None:
            yield parcel.damaged
        start = parcel.stop


class Log:
    """A history in a database in memory, built one block at a time."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        create(self.connection)
        self.next = 0
        self.batches: list[Batch] = []
        self.blocks: list[Block] = []
        self.epoch()

    def epoch(self) -> None:
        """Begin an epoch, as a restart does."""
        self.connection.execute("INSERT INTO epochs (begins, opened, mark) VALUES (?, 0, 7)",
                                (self.next,))  # fmt: skip

    def add(self, *added: Batch) -> Block:
        """Add a block of these messages."""
        base = self.next
        for batch in added:
            batch.offset = self.next
            self.next += batch.count
        runs = [record_of(batch) for batch in added]
        block = encode_block(runs, RUN, base, self.next)
        insert_block(self.connection, block)
        for name, sums in topics_of(runs).items():
            self.connection.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (name,))
            self.connection.execute(
                "INSERT INTO contents SELECT ?, id, ?, ? FROM topics WHERE name = ?",
                (base, *sums, name),
            )
        self.connection.execute("UPDATE state SET next = ?", (self.next,))
        self.batches += added
        self.blocks.append(block)
        return block

    def expire(self, base: int, topic: str) -> None:
        """Expire a topic's messages in a block."""
        self.connection.execute(
            "DELETE FROM contents WHERE base = ? AND topic = "
            "(SELECT id FROM topics WHERE name = ?)",
            (base, topic),
        )
        (left,) = self.connection.execute(
            "SELECT count(*) FROM contents WHERE base = ?", (base,)
        ).fetchone()
        if not left:
            self.connection.execute("DELETE FROM blocks WHERE base = ?", (base,))
        (block,) = (one for one in self.blocks if one.base == base)
        self.batches = [
            b for b in self.batches if b.topic != topic or not base <= b.offset < block.stop
        ]

    def damage(self, base: int) -> None:
        """Damage a block."""
        self.connection.execute(
            "UPDATE blocks SET payloads = payloads || x'00' WHERE base = ?", (base,)
        )

    def rows(self, start: int, stop: int, topics: frozenset[str] | None) -> list[dict[str, Any]]:
        """The expected messages of a range."""
        return [
            row(batch, index, RUN, 0)
            for batch in self.batches
            for index in range(batch.count)
            if start <= batch.offset + index < stop and (topics is None or batch.topic in topics)
        ]

    def read(self, *args: Any, **kwargs: Any) -> list[arrow.BatchOrGap]:
        """As ``read_arrow``."""
        return list(read_arrow(self.connection, *args, **kwargs))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A history of a few blocks; timestamps increase except at restarts."""
    log = Log()
    now = 0
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.integers(0, 3)) == 0:
            log.epoch()
            now = draw(st.integers(0, 50))
        added = []
        for batch in draw(st.lists(batches(), min_size=1, max_size=5)):
            now += draw(st.integers(0, 5))
            added.append(dataclasses.replace(batch, timestamp=now, sequence=log.next))
        log.add(*added)
    return log


QUICK = settings(examples(0.6), suppress_health_check=[HealthCheck.too_slow])


class PropertyTests(SynchronousTestCase):
    """Compared with a model of single messages"""

    @QUICK
    @given(logs(), st.data())
    def test_a_range_as_columns(self, log: Log, data: st.DataObject) -> None:
        for block in log.blocks:
            for topic in data.draw(st.frozensets(st.sampled_from(["a", "bé", "c/d"]))):
                log.expire(block.base, topic)
        offsets = st.integers(0, log.next + 2)
        start, stop = sorted([data.draw(offsets), data.draw(offsets)])
        topics = data.draw(st.none() | st.frozensets(st.sampled_from(["a", "c/d", "x"])))
        parts = log.read(start, stop, topics, headers=True)
        assert rows_of(parts) == log.rows(start, stop, topics)

    @QUICK
    @given(logs(), st.integers(-1, 100))
    def test_by_time(self, log: Log, timestamp: int) -> None:
        at_or_after = [b.offset for b in log.batches if b.timestamp >= timestamp]
        expected = min(at_or_after, default=log.next)
        assert offset_at(log.connection, timestamp) == expected

    @QUICK
    @given(logs(), st.data())
    def test_topics(self, log: Log, data: st.DataObject) -> None:
        for block in log.blocks:
            for topic in data.draw(st.frozensets(st.sampled_from(["a", "bé"]))):
                log.expire(block.base, topic)
        offsets = st.integers(0, log.next + 2)
        start, stop = sorted([data.draw(offsets), data.draw(offsets)])
        expected: dict[str, tuple[int, int]] = {}
        for one in log.rows(start, stop, None):
            count, nbytes = expected.get(one["topic"], (0, 0))
            own = sum(len(h["key"].encode()) + len(h["value"]) for h in one["headers"])
            size = len(one["value"]) + len(one["key"]) + own
            expected[one["topic"]] = (count + 1, nbytes + size)
        assert topics_in(log.connection, start, stop) == expected

    @QUICK
    @given(logs(), st.integers(0, 2000))
    def test_parcels_follow_one_another(self, log: Log, nbytes: int) -> None:
        at, found = 0, []
        while at < log.next:
            parcel = read_parcel(log.connection, at, log.next, None, nbytes)
            assert parcel.start == at < parcel.stop
            found += rows_of(list(arrow.batches(parcel, headers=True)))
            at = parcel.stop
        assert found == log.rows(0, log.next, None)


class RangeTests(SynchronousTestCase):
    """The ends of ranges"""

    def setUp(self) -> None:
        self.log = Log()
        self.log.add(batch_of([b"1", b"22"], "a"), batch_of([b"333"], "b"))
        self.log.add(batch_of([b"4"], "a"))
        self.log.add(batch_of([b"5", b"6"], "b"))

    def values(self, *args: Any) -> list[Any]:
        """The payloads of a range, and its damaged ranges."""
        found: list[Any] = []
        for part in self.log.read(*args):
            found += [part] if isinstance(part, tuple) else part["value"].to_pylist()
        return found

    def test_damage_is_reported_where_it_is(self) -> None:
        self.log.damage(3)
        assert self.values(0, 6, None) == [b"1", b"22", b"333", (3, 4), b"5", b"6"]
        assert self.values(3, 4, None) == [(3, 4)]
        assert self.values(0, 3, None) == [b"1", b"22", b"333"]

    def test_damage_is_cut_to_the_range(self) -> None:
        self.log.damage(0)
        assert self.values(1, 2, None) == [(1, 2)]
        assert self.values(2, 5, None) == [(2, 3), b"4", b"5"]

    def test_damage_of_other_topics_is_no_loss(self) -> None:
        self.log.damage(3)
        assert self.values(0, 6, frozenset("b")) == [b"333", b"5", b"6"]

    def test_a_block_that_is_gone_is_damage(self) -> None:
        self.log.connection.execute("DELETE FROM blocks WHERE base = 3")
        assert self.values(1, 6, None) == [b"22", b"333", (3, 4), b"5", b"6"]

    def test_the_end_is_what_was_committed(self) -> None:
        assert self.values(4, 100, None) == [b"5", b"6"]
        assert self.values(6, 100, None) == []

    def test_the_brokers_own_topics_are_there_if_asked_for(self) -> None:
        self.log.add(batch_of([b"7"], "$SYS/events"), batch_of([b"8"], "a"))
        assert self.values(5, 8, None) == [b"6", b"8"]
        assert self.values(5, 8, frozenset(["$SYS/events"])) == [b"7"]

    def test_a_rare_topic_among_many_blocks(self) -> None:
        for _ in range(SCAN + 10):
            self.log.add(batch_of([b"x"], "a"))
        self.log.add(batch_of([b"y"], "b"))
        names = frozenset(["b", *map(str, range(100))])
        assert self.values(0, self.log.next, names) == [b"333", b"5", b"6", b"y"]

    def test_time_at_a_damaged_block_is_its_beginning(self) -> None:
        self.log.damage(0)
        assert offset_at(self.log.connection, 5) == 0

    def test_an_empty_log(self) -> None:
        log = Log()
        assert offset_at(log.connection, 0) == 0
        assert topics_in(log.connection, 0, 10) == {}
        assert list(read_arrow(log.connection, 0, 10, None)) == []

    def test_a_forgotten_topic_is_none(self) -> None:
        self.log.connection.execute(
            "UPDATE topics SET name = ? WHERE name = 'b'", (f"{FORGOTTEN}2",)
        )
        assert topics_in(self.log.connection, 0, 6) == {"a": (3, 4 + 3 * len(b"alice"))}
        assert self.values(0, 6, None) == [b"1", b"22", b"4"]


class EpochTests(SynchronousTestCase):
    """Whether a position is valid"""

    def test_up_to_where_the_next_epoch_began(self) -> None:
        log = Log()
        log.add(batch_of([b"1", b"2"]))
        log.epoch()
        log.add(batch_of([b"3"]))
        (first, _), (second, begins) = known = block_ranges.epochs(log.connection)
        assert begins == 2
        good = [(first, 0), (first, 2), (second, 0), (second, 3), (second, 99)]
        bad = [(first, 3), ("3-00000007", 0), ("", 0)]
        assert all(continues(known, *one) for one in good)
        assert not any(continues(known, *one) for one in bad)


class ColumnTypeTests(SynchronousTestCase):
    """Reading in another process"""

    def test_batches_have_the_schema(self) -> None:
        log = Log()
        log.add(batch_of([b"1"]))
        (part,) = log.read(0, 1, None)
        assert isinstance(part, pa.RecordBatch)
        assert part.schema.equals(arrow.SCHEMA)
        assert rows_of([part]) == without_headers([row(log.batches[0], 0, RUN, 0)])
