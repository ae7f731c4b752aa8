"""Both stores: ranges in columns, offsets by time, and messages committed together."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import HistoryUnavailable
from pubsub.store import arrow
from pubsub.store.journal import Segment
from pubsub.store.memory import MemoryStore
from pubsub.store.parcel import Parcel
from pubsub.store.writer import Group
from tests.unit.fakes import batch_of
from tests.unit.stores import StoreCase, sql
from tests.unit.test_arrow import rows_of

_Result = TypeVar("_Result")


def values(parcel: Parcel) -> list[Any]:
    """The payloads of a parcel."""
    return [row["value"] for row in rows_of(list(arrow.batches(parcel)))]


class MemoryTests(SynchronousTestCase):
    """Runs as blocks"""

    def setUp(self) -> None:
        self.store = MemoryStore(100, 2**20)
        self.store.open(7)
        for number, topic in enumerate("abab"):
            batch = batch_of([b"%d" % number, b"x"], topic)
            batch.timestamp = 10 * number
            self.store.append(batch)

    def now(self, done: Deferred[_Result]) -> _Result:
        """The result of a Deferred."""
        result: _Result = self.successResultOf(done)
        return result

    def parcel(self, start: int, stop: int, topics: str | None = None, room: int = 2**20) -> Parcel:
        """The result of a read."""
        names = None if topics is None else frozenset(topics)
        return self.now(self.store.read_parcel(start, stop, names, room))

    def test_ranges(self) -> None:
        assert values(self.parcel(0, 8)) == [b"0", b"x", b"1", b"x", b"2", b"x", b"3", b"x"]
        assert values(self.parcel(3, 7, "a")) == [b"2", b"x"]
        assert values(self.parcel(1, 2)) == [b"x"]
        assert (self.parcel(3, 7).stop, self.parcel(5, 100).stop, self.parcel(8, 8).stop) == (
            7,
            8,
            8,
        )

    def test_a_little_at_a_time(self) -> None:
        at, found = 0, []
        while at < 8:
            parcel = self.parcel(at, 8, "b", 1)
            assert parcel.stop > at
            found += values(parcel)
            at = parcel.stop
        assert found == [b"1", b"x", b"3", b"x"]

    def test_by_time(self) -> None:
        offsets = [self.now(self.store.offset_at(at)) for at in (-1, 0, 1, 30, 31)]
        assert offsets == [0, 0, 2, 6, 8]

    def test_topics(self) -> None:
        found = self.now(self.store.topics_in(1, 7))
        assert found == {"a": (3, 18), "b": (3, 18)}

    def test_what_has_gone(self) -> None:
        self.store.forget("a")
        assert values(self.parcel(0, 8)) == [b"1", b"x", b"3", b"x"]
        small = MemoryStore(2, 2**20)
        for payload in (b"1", b"2", b"3"):
            small.append(batch_of([payload]))
        parcel = self.now(small.read_parcel(0, 3, None, 1000))
        assert (parcel.first, values(parcel)) == (1, [b"2", b"3"])
        nothing = MemoryStore(0, 0)
        nothing.append(batch_of([b"1"]))
        parcel = self.now(nothing.read_parcel(0, 1, None, 100))
        assert (parcel.first, parcel.stop, parcel.blocks) == (1, 1, ())

    def test_positions_of_another_process_mean_nothing(self) -> None:
        other = MemoryStore(100, 2**20)
        other.open(8)
        assert self.store.continues(self.store.epoch, 3)
        assert not self.store.continues(other.epoch, 3)


class SqliteTests(StoreCase):
    """The file"""

    async def test_ranges(self) -> None:
        await self.put(batch_of([b"1", b"2"], "a"), batch_of([b"3"], "b"))
        self.store.append(batch_of([b"not committed"]))
        parcel = await self.store.read_parcel(1, 3, None, 100)
        assert (values(parcel), parcel.stop) == ([b"2", b"3"], 3)
        assert await self.store.topics_in(0, 3) == {"a": (2, 12), "b": (1, 6)}
        assert await self.store.offset_at(0) == 0
        assert await self.store.offset_at(2**60) == self.store.committed

    async def test_a_topic_that_has_just_ended_is_not_read(self) -> None:
        await self.put(batch_of([b"1"], "a"), batch_of([b"2"], "b"))
        self.store.forget("a")
        assert values(await self.store.read_parcel(0, 2, None, 100)) == [b"2"]
        await self.put(batch_of([b"3"], "a"))
        assert values(await self.store.read_parcel(0, 3, None, 100)) == [b"2", b"3"]

    async def test_damage_is_told(self) -> None:
        await self.put(batch_of([b"1"]))
        await self.put(batch_of([b"2"]))
        sql(self.path, "UPDATE blocks SET payloads = x'' WHERE base = 0")
        parcel = await self.store.read_parcel(0, 2, None, 100)
        assert (parcel.damaged, parcel.stop, parcel.blocks) == ((0, 1), 1, ())

    async def test_positions_of_earlier_epochs(self) -> None:
        first = self.store.epoch
        await self.put(batch_of([b"1"]))
        await self.reopen()
        assert self.store.continues(first, 1)
        assert not self.store.continues(first, 2)
        assert self.store.continues(self.store.epoch, 1)
        assert not self.store.continues("", 0)

    async def test_together_is_one_transaction(self) -> None:
        groups: list[int] = []
        commit = self.store._writer.commit

        def counted(group: Group | None, segment: Segment) -> None:
            assert group is not None
            groups.append(len(group.runs))
            commit(group, segment)

        self.patch(self.store._writer, "commit", counted)  # type: ignore[no-untyped-call]
        large = bytes(2**20)
        with self.store.together():
            for _ in range(5):
                self.store.append(batch_of([large]))
            self.store.put("t", "k", b"v")
        assert await self.stored()
        assert groups == [5]
        assert sql(self.path, "SELECT value FROM metadata WHERE space = 't'") == [(b"v",)]

    async def test_nothing_is_begun_that_could_not_be_stored(self) -> None:
        self.store._commits.failing = "the disk is full"
        with pytest.raises(HistoryUnavailable), self.store.together():
            raise AssertionError("it does not get here")
        self.store._commits.failing = None
