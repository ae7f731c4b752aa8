"""The index of a segment: compared with a plain list of records; files; readers in threads."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.records.topic_counts import TopicCounts
from pubsub.store.segments import segment_index
from pubsub.store.segments.segment_index import ENTRY_BYTES, LOST, SegmentIndex
from tests.profiles import examples

SALT = b"saltsalt"
_MINUTE = 60_000_000
TOPICS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "é" * 40]), st.tuples(st.integers(1, 9), st.integers(0, 99))
)


@dataclass(frozen=True)
class Given:
    """A record as it is added; ``after`` is the time since the one before in µs."""

    topics: TopicCounts
    length: int
    after: int
    closes: bool

    @property
    def count(self) -> int:
        return sum(count for count, _ in self.topics.values())


RECORDS = st.lists(
    st.builds(
        Given,
        TOPICS,
        st.sampled_from([104, 1000, ENTRY_BYTES // 3, ENTRY_BYTES, 3 * ENTRY_BYTES]),
        st.sampled_from([0, 1, _MINUTE, 30 * _MINUTE]),
        st.booleans(),
    ),
    max_size=30,
)


def index_of(records: list[Given], base: int = 100) -> SegmentIndex:
    """The index of records from ``base`` on."""
    index = SegmentIndex(base, 64)
    clock = 1_000_000
    for one in records:
        if one.closes:
            index.close_entry()
        clock += one.after
        first, last = (clock, clock + 5) if one.topics else (0, 0)
        index.add(index.stop, index.stop + one.count, one.length, first, last, one.topics)
    return index


class ModelTests(SynchronousTestCase):
    """Compared with the records"""

    @given(RECORDS)
    def test_entries_follow_one_another_and_hold_the_records(self, records: list[Given]) -> None:
        index = index_of(records)
        entries = [index.entry(number) for number in range(len(index))]
        assert [e.number for e in entries] == list(range(len(entries)))
        at, position = 100, 64
        for entry in entries:
            assert (entry.base, entry.position) == (at, position)
            at, position = entry.stop, entry.end
        assert (at, position) == (index.stop, index.end)
        assert index.stop == 100 + sum(one.count for one in records)
        assert index.end == 64 + sum(one.length for one in records)
        assert index.records == len(records)
        for entry in entries:
            assert entry.last - entry.first <= 10 * _MINUTE + 5
        totals: TopicCounts = {}
        for one in records:
            for name, (count, nbytes) in one.topics.items():
                before = totals.get(name, (0, 0))
                totals[name] = (before[0] + count, before[1] + nbytes)
        assert index.totals() == totals
        stamps = [index_of(records[: i + 1]).last_timestamp for i in range(len(records))]
        assert stamps == sorted(stamps)

    @given(RECORDS, st.integers(90, 300))
    def test_the_entry_of_an_offset(self, records: list[Given], offset: int) -> None:
        index = index_of(records)
        number = index.entry_at(offset)
        if 100 <= offset < index.stop:
            entry = index.entry(number)
            assert entry.base <= offset < entry.stop
        elif offset < 100:
            assert number == 0

    @given(RECORDS, st.frozensets(st.sampled_from(["a", "b", "c", "none"])), st.integers(0, 5))
    def test_entries_with_topics(
        self, records: list[Given], topics: frozenset[str], start: int
    ) -> None:
        index = index_of(records)
        expected = [
            number
            for number in range(start, len(index))
            if not topics.isdisjoint(index.contents(number))
        ]
        assert list(index.entries_with(topics, start)) == expected
        assert list(index.entries_with(None, start)) == list(range(start, len(index)))

    def test_many_topics_are_not_looked_up(self) -> None:
        index = index_of([Given({"a": (1, 1)}, ENTRY_BYTES, 0, True) for _ in range(3)])
        many = frozenset(f"{number}" for number in range(segment_index._LOOKED_UP + 1))
        assert list(index.entries_with(many)) == [0, 1, 2]

    def test_a_lost_range_of_any_length(self) -> None:
        index = SegmentIndex(0, 64)
        index.add(0, 2**40, 104, 0, 0, {LOST: (2**40, 0)})
        again = SegmentIndex.decode(index.encode(SALT), SALT)
        assert again is not None
        assert again.entry(0).stop == 2**40


class FileTests(SynchronousTestCase):
    """The file of an index"""

    @given(RECORDS)
    def test_it_is_read_as_it_was_written(self, records: list[Given]) -> None:
        index = index_of(records)
        again = SegmentIndex.decode(index.encode(SALT), SALT)
        assert again is not None
        assert (again.stop, again.end, again.records) == (index.stop, index.end, index.records)
        assert (again.first_timestamp, again.last_timestamp) == (
            index.first_timestamp,
            index.last_timestamp,
        )
        for number in range(len(index)):
            assert again.entry(number) == index.entry(number)
            assert again.contents(number) == index.contents(number)
        assert list(again.entries_with(frozenset("a"))) == list(index.entries_with(frozenset("a")))

    @examples(0.5)
    @given(RECORDS, st.data())
    def test_a_changed_index_is_not_used(self, records: list[Given], data: st.DataObject) -> None:
        good = index_of(records).encode(SALT)
        changed = bytearray(good)
        changed[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
        assert SegmentIndex.decode(bytes(changed), SALT) is None
        assert SegmentIndex.decode(good[: data.draw(st.integers(0, len(good) - 1))], SALT) is None
        assert SegmentIndex.decode(good, b"anothers") is None


class GrowingTests(SynchronousTestCase):
    """Readers of an index to which another thread adds"""

    def test_readers_see_a_whole_index(self) -> None:
        index = SegmentIndex(0, 64)
        total = 20_000

        def add() -> None:
            for number in range(total):
                name = f"t{number % 7}"
                length = ENTRY_BYTES // 3 if number % 5 else 104
                index.add(number, number + 1, length, number + 1, number + 1, {name: (1, 2)})

        writer = Thread(target=add)
        writer.start()
        seen = 0
        while seen < total:
            alive = writer.is_alive()
            stop, entries = index.stop, len(index)
            if entries:
                first, last = index.entry(max(entries - 3, 0)), index.entry(entries - 1)
                assert first.base <= first.stop <= last.stop
                assert last.stop >= stop - 1 or entries < len(index)
                for number in range(first.number, last.number):
                    entry, following = index.entry(number), index.entry(number + 1)
                    assert (entry.stop, entry.end) == (following.base, following.position)
                    count = sum(count for count, _ in index.contents(number).values())
                    assert count == entry.stop - entry.base
                for number in index.entries_with(frozenset(["t3"]), first.number):
                    assert number < len(index)
            seen = stop
            assert alive or index.stop == total
        writer.join()
        assert index.totals() == {
            f"t{n}": (len(range(n, total, 7)), 2 * len(range(n, total, 7))) for n in range(7)
        }
