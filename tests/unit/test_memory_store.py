"""MemoryStore: a bounded log, compared with a plain list."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch, Headers, Page
from pubsub.store.memory_store import MemoryStore
from pubsub.store.records.stored_runs import RUN_BYTES
from tests.unit.block_batches import plain_batches
from tests.unit.fakes import batch_of, mixed_batch

TOPICS = ("a", "b", "c")


@dataclass(frozen=True)
class Stored:
    """One message as the model keeps it."""

    offset: int
    topic: str
    payload: bytes
    headers: Headers | None


def messages(found: list[Batch]) -> list[Stored]:
    """The messages of ``found``, with their offsets."""
    result = []
    for batch in found:
        headers: Sequence[Headers | None] = batch.headers or [None] * batch.count
        assert len(headers) == batch.count
        assert batch.nbytes == sum(map(len, batch.payloads()))
        for index, (payload, own) in enumerate(zip(batch.payloads(), headers, strict=True)):
            result.append(Stored(batch.offset + index, batch.topic, payload, own))
    return result


class StoreCase(SynchronousTestCase):
    """Reading pages."""

    def page(
        self, store: MemoryStore, offset: int, topics: frozenset[str] | None, nbytes: int
    ) -> Page:
        return self.successResultOf(store.read(offset, topics, nbytes))

    def everything(
        self, store: MemoryStore, offset: int = 0, names: str = "abc", nbytes: int = 100
    ) -> list[Stored]:
        """All pages from ``offset`` on, together."""
        found: list[Batch] = []
        while offset < store.next_offset:
            page = self.page(store, offset, frozenset(names), nbytes)
            assert page.next_offset > offset
            offset = page.next_offset
            found += page.batches
        return messages(found)


class ModelTests(StoreCase):
    """Compared with a plain list"""

    @given(
        st.lists(plain_batches(TOPICS), max_size=15),
        st.sampled_from([1, 5, 20, 10_000]),
        st.sampled_from([400, 3000, 2**20]),
        st.integers(0, 60),
        st.none() | st.frozensets(st.sampled_from([*TOPICS, "absent"])),
        st.integers(1, 200),
    )
    def test_pages_have_retained_messages_once_and_in_order(
        self,
        appended: list[Batch],
        max_messages: int,
        max_bytes: int,
        offset: int,
        topics: frozenset[str] | None,
        page_bytes: int,
    ) -> None:
        store = MemoryStore(max_messages, max_bytes)
        model: list[Stored] = []
        for batch in appended:
            store.append(batch)
            model += messages([batch])
        assert store.next_offset == len(model)
        assert [message.offset for message in model] == list(range(len(model)))

        found: list[Stored] = []
        at = offset
        while at < store.next_offset:
            page = self.page(store, at, topics, page_bytes)
            assert page.next_offset > at
            content = messages(page.batches)
            assert sum(len(m.payload) for m in content[:-8]) <= page_bytes
            found += content
            at = page.next_offset
        expected = [
            message
            for message in model[max(offset, store.first_offset) :]
            if topics is None or message.topic in topics
        ]
        assert found == expected

    @given(
        st.lists(plain_batches(TOPICS), min_size=1, max_size=30),
        st.integers(1, 30),
        st.integers(RUN_BYTES, 5000),
    )
    def test_the_bounds_hold_unless_one_batch_alone_is_over_them(
        self, appended: list[Batch], max_messages: int, max_bytes: int
    ) -> None:
        store = MemoryStore(max_messages, max_bytes)
        for batch in appended:
            store.append(batch)
            kept = self.everything(store)
            assert kept[0].offset == store.first_offset
            if store.first_offset != batch.offset:
                assert len(kept) <= max_messages
                assert sum(len(m.payload) for m in kept) + RUN_BYTES <= max_bytes
            else:
                assert len(kept) == batch.count

    @given(st.lists(plain_batches(TOPICS), max_size=10))
    def test_a_batch_comes_back_as_it_was(self, appended: list[Batch]) -> None:
        store = MemoryStore(1000, 2**20)
        for batch in appended:
            store.append(batch)
        assert self.page(store, 0, None, 2**20).batches == appended


class BoundTests(StoreCase):
    """Bounds"""

    def test_the_oldest_go_first(self) -> None:
        store = MemoryStore(3, 2**20)
        for number in range(5):
            store.append(batch_of([b"%d" % number], "a"))
        assert store.first_offset == 2
        assert [m.payload for m in self.everything(store)] == [b"2", b"3", b"4"]

    def test_exactly_the_bound_is_kept(self) -> None:
        store = MemoryStore(4, 2**20)
        store.append(batch_of([b"0", b"1"], "a"))
        store.append(batch_of([b"2", b"3"], "a"))
        assert store.first_offset == 0
        store.append(batch_of([b"4"], "a"))
        assert store.first_offset == 2

    def test_bytes_bound_it_as_well(self) -> None:
        store = MemoryStore(1000, 2 * (RUN_BYTES + len(b"alice") + 100))
        for _ in range(3):
            store.append(batch_of([b"x" * 50] * 2, "a"))
        assert store.first_offset == 2

    def test_headers_count_as_bytes(self) -> None:
        store = MemoryStore(1000, 2000)
        for _ in range(3):
            store.append(batch_of([b""], "a", [{"key": b"v" * 500}]))
        assert store.first_offset > 0

    def test_so_does_the_memory_that_headers_take(self) -> None:
        store = MemoryStore(10_000, 2**24)
        before = store.figures()["bytes"]
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        headers = [{f"{key}{n}": b"%d" % n for key in "abcde"} for n in range(1000)]
        taken, _ = tracemalloc.get_traced_memory()
        store.append(batch_of([b""] * 1000, "a", headers))
        assert store.figures()["bytes"] - before > 0.7 * taken

    def test_the_newest_batch_stays_however_large(self) -> None:
        store = MemoryStore(2, 10)
        store.append(batch_of([b"x" * 100] * 5, "a"))
        assert len(self.everything(store)) == 5
        store.append(batch_of([b"y"], "a"))
        assert [m.payload for m in self.everything(store)] == [b"y"]

    def test_without_history_offsets_count_all_the_same(self) -> None:
        for store in (MemoryStore(0, 2**20), MemoryStore(1000, 0)):
            first, second = batch_of([b"a", b"b"]), batch_of([b"c"])
            store.append(first)
            store.append(second)
            assert (first.offset, second.offset) == (0, 2)
            assert store.next_offset == store.first_offset == 3
            assert self.page(store, 0, None, 100) == Page([], 3)

    def test_many_removals_leave_the_rest_readable(self) -> None:
        store = MemoryStore(50, 2**20)
        for number in range(5000):
            store.append(batch_of([b"%d" % number], TOPICS[number % 3]))
            oldest = self.page(store, 0, None, 1).batches[0]
            assert (oldest.offset, oldest.payloads()) == (
                store.first_offset,
                [b"%d" % max(number - 49, 0)],
            )
        assert [m.offset for m in self.everything(store)] == list(range(4950, 5000))
        assert [m.offset for m in self.everything(store, 4990, "a")] == [4992, 4995, 4998]

    def test_a_large_batch_removes_as_many_small_ones_as_it_has_to(self) -> None:
        small, large = RUN_BYTES + len(b"alice") + 100, RUN_BYTES + len(b"alice") + 70_000
        for room in range(300):
            store = MemoryStore(10_000, large + room * small + 5)
            for number in range(300):
                store.append(batch_of([b"%100d" % number], "a"))
            store.append(batch_of([bytes(70_000)], "a"))
            assert store.first_offset == 300 - room
            assert store.figures() == {"bytes": large + room * small}

    def test_removed_messages_take_no_memory(self) -> None:
        store = MemoryStore(10_000, 2**20)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for _ in range(20):
            store.append(batch_of([bytes(2**19)], "a"))
        assert tracemalloc.get_traced_memory()[0] < 2**21

    def test_the_summary_has_the_bounds(self) -> None:
        assert "none" in MemoryStore(0, 0).summary
        summary = MemoryStore(123, 4567).summary
        assert "123" in summary
        assert "4567" in summary


class ReadTests(StoreCase):
    """Single pages"""

    def setUp(self) -> None:
        self.store = MemoryStore(10_000, 2**24)

    def test_the_garbage_collector_does_not_track_kept_messages(self) -> None:
        for payloads in ([b"abc", b"def"], [b"a", b"bcd"]):
            self.store.append(batch_of(payloads, "a"))
        gc.collect()
        assert [gc.is_tracked(kept) for kept in self.store._log._runs] == [False, False]

    def test_a_page_ends_when_it_has_its_bytes(self) -> None:
        for _ in range(10):
            self.store.append(batch_of([b"x" * 10], "a"))
        # The overhead of batches and messages counts too.
        page = self.page(self.store, 0, None, 3 * (10 + RUN_BYTES))
        assert len(page.batches) == 3
        assert page.next_offset == 3

    def test_so_does_one_with_messages_of_several_topics(self) -> None:
        for _ in range(10):
            self.store.append(mixed_batch([("a", b"x" * 1000), ("b", b"x" * 1000)], ("a", "b")))
        assert len(self.page(self.store, 0, None, 5000).batches) == 3

    def test_a_parcel_ends_when_it_has_its_bytes(self) -> None:
        for _ in range(10):
            self.store.append(batch_of([b"x" * 1000], "a"))
        parcel = self.successResultOf(self.store.read_parcel(0, 10, None, 2500))
        assert parcel.stop == 2

    def test_topics_of_a_range_that_begins_and_ends_within_batches(self) -> None:
        for topic in "abc":
            self.store.append(batch_of([b"x"] * 10, topic))
        for start, stop, counts in (
            (0, 30, {"a": 10, "b": 10, "c": 10}),
            (3, 27, {"a": 7, "b": 10, "c": 7}),
            (18, 27, {"b": 2, "c": 7}),
            (3, 5, {"a": 2}),
            (9, 10, {"a": 1}),
            (10, 20, {"b": 10}),
        ):
            found = self.successResultOf(self.store.topics_in(start, stop))
            assert {name: count for name, (count, _) in found.items()} == counts

    def test_empty_messages_fill_a_page_too(self) -> None:
        self.store.append(batch_of([b""] * 5000, "a"))
        self.store.append(batch_of([b""], "a"))
        assert len(self.page(self.store, 0, None, 100_000).batches) == 1

    def test_a_page_has_a_message_however_small_it_should_be(self) -> None:
        self.store.append(batch_of([b"x" * 1000], "a"))
        assert len(self.page(self.store, 0, None, 1).batches) == 1

    def test_a_page_may_begin_within_a_batch(self) -> None:
        self.store.append(batch_of([b"0", b"1", b"2"], "a", [{"n": b"0"}, {}, {"n": b"2"}], 70))
        (batch,) = self.page(self.store, 1, None, 100).batches
        assert batch.payloads() == [b"1", b"2"]
        assert batch.headers == [{}, {"n": b"2"}]
        assert (batch.offset, batch.sequence, batch.nbytes) == (1, 71, 2)

    def test_at_the_end_there_is_nothing_yet(self) -> None:
        assert self.page(self.store, 0, None, 100) == Page([], 0)
        self.store.append(batch_of([b"x"], "a"))
        assert self.page(self.store, 1, None, 100) == Page([], 1)

    def test_a_page_without_the_topic_continues_behind_the_examined_offsets(self) -> None:
        for _ in range(5000):
            self.store.append(batch_of([b"x"], "a"))
        self.store.append(batch_of([b"rare"], "b"))
        page = self.page(self.store, 0, frozenset("b"), 100)
        assert page.batches == []
        assert 0 < page.next_offset < 5000
        assert [m.payload for m in self.everything(self.store, 0, "b")] == [b"rare"]


class TableTests(StoreCase):
    """put and items"""

    def test_values_are_kept_by_table_and_key(self) -> None:
        store = MemoryStore(0, 0)
        store.put("keys", "a", b"1")
        store.put("keys", "b", b"2")
        store.put("keys", "a", b"3")
        store.put("other", "a", b"4")
        assert sorted(store.items("keys")) == [("a", b"3"), ("b", b"2")]
        assert list(store.items("other")) == [("a", b"4")]
        assert list(store.items("none")) == []
