"""``Catalog``: which messages are hidden, and which segments and records stay in memory."""

from __future__ import annotations

import tracemalloc

from twisted.trial.unittest import SynchronousTestCase

from pubsub.settings import matcher
from pubsub.store.catalog import catalog as module
from pubsub.store.catalog.catalog import Catalog, Horizon, set_horizons
from pubsub.store.reading.log_view import LogView
from tests.histories import history
from tests.unit.fakes import open_files, scratch
from tests.unit.shown_log import numbers, shown


def horizons(*given: tuple[str, int]) -> list[Horizon]:
    return [Horizon(pattern, matcher([pattern]), offset) for pattern, offset in given]


class HiddenTests(SynchronousTestCase):
    """Messages of topics that have ended, and expired ones"""

    def test_some_may_be_hidden(self) -> None:
        catalog = Catalog(horizons=horizons(("a*", 100), ("b", 0)))
        for topics, some in (
            (None, True),
            ({"a1"}, True),
            ({"b", "a1"}, True),
            ({"b"}, False),
            ({"b", "other"}, False),
        ):
            wanted = None if topics is None else frozenset(topics)
            assert catalog.hides(99, wanted) is some
            assert not catalog.hides(100, wanted)

    def test_topics_without_messages_to_be_read(self) -> None:
        catalog = Catalog(ended={"ended": 30}, horizons=horizons(("a*", 100), ("b", 0)))
        names = {"a1", "b", "ended", "other"}
        assert catalog.visible(names, 30) == {"b", "other"}
        assert catalog.visible(names, 31) == {"b", "ended", "other"}
        assert catalog.visible(names, 101) == names
        catalog.forget_ended(29)
        assert catalog.ended == {"ended": 30}
        catalog.forget_ended(30)
        assert not catalog.ended

    def test_one_of_several_horizons_hides(self) -> None:
        catalog = Catalog(horizons=horizons(("a*", 100), ("b", 0)))
        assert catalog.visible(["a1", "b"], 50) == {"b"}

    def test_horizons_of_few_topics_are_remembered(self) -> None:
        self.patch(module, "_TOPICS", 10)  # type: ignore[no-untyped-call]
        catalog = Catalog(horizons=horizons(("a*", 100), ("*", 5)))
        for number in range(100):
            assert catalog.hidden_before(f"a{number}") == 100
            assert catalog.hidden_before(f"b{number}") == 5
            assert 0 < len(catalog._horizon_of) <= 10

    def test_new_patterns_hide_what_none_kept(self) -> None:
        catalog = Catalog(low=10, horizons=horizons(("a", 40), ("*", 20)))
        assert catalog.first == 20
        set_horizons(catalog, horizons(("b", 0), ("a", 0), ("*", 0)), {"a": 40, "*": 20})
        assert [one.offset for one in catalog.horizons] == [20, 40, 20]
        assert [catalog.hidden_before(name) for name in "abc"] == [40, 20, 20]
        set_horizons(catalog, horizons(("a", 0)), {"a": 40})
        assert [catalog.hidden_before(name) for name in "abc"] == [40, 0, 0]
        assert catalog.first == 10


class MemoryTests(SynchronousTestCase):
    """Segments and records of a log of six segments"""

    def setUp(self) -> None:
        self.path = scratch(self)
        for start in range(0, 60, 10):
            with history(self.path) as log:
                for number in range(start, start + 10):
                    log.put("a", [b"%d" % number])
        view = LogView(self.path)
        self.addCleanup(view.close)
        self.catalog = view.catalog

    def set(self, name: str, value: int) -> None:
        """Set a bound of the module."""
        self.patch(module, name, value)  # type: ignore[no-untyped-call]

    def open_segments(self) -> list[int]:
        """Return the bases of the segments whose files are open."""
        names = [name.rpartition("/")[2] for name in open_files(self.path)]
        return [int(name.partition("-")[0]) for name in names if name.endswith(".log")]

    def test_few_segments_stay_open(self) -> None:
        self.set("_SEGMENTS", 3)
        assert shown(self.catalog) == (numbers(range(60)), [])
        assert self.open_segments() == [30, 40, 50]

    def test_those_that_were_read_last(self) -> None:
        self.set("_SEGMENTS", 2)
        for number in (0, 1, 0, 2):
            segment = self.catalog.segments[number]
            self.catalog.use(segment)
            segment.read(0, 8)
        assert self.open_segments() == [0, 20]

    def test_few_bytes_of_indexes_stay(self) -> None:
        sizes = [segment.index.nbytes for segment in self.catalog.segments]
        for segment in self.catalog.segments[:-1]:
            segment.release()
            assert not segment.index_bytes
        self.set("_INDEX_BYTES", 3 * max(sizes))
        assert shown(self.catalog) == (numbers(range(60)), [])
        assert self.open_segments() == [30, 40, 50]
        self.set("_INDEX_BYTES", 1)
        assert shown(self.catalog) == (numbers(range(60)), [])
        assert self.open_segments() == [50]

    def test_records_stay_within_their_bytes(self) -> None:
        pairs = [(one, one.index.entry(0)) for one in self.catalog.segments[:5]]
        size = max(entry.end - entry.position for _, entry in pairs)
        self.set("_RECORD_BYTES", 0)
        self.set("_CACHED_BYTES", 4 * size)
        first = [self.catalog.records(*pair) for pair in pairs[:4]]
        # The oldest of them is read once more, and the next one leaves as the fifth comes.
        assert self.catalog.records(*pairs[0]) is first[0]
        self.catalog.records(*pairs[4])
        assert self.catalog.records(*pairs[0]) is first[0]
        assert self.catalog.records(*pairs[2]) is first[2]
        assert self.catalog.records(*pairs[1]) is not first[1]

    def test_one_large_entry_does_not_replace_all_others(self) -> None:
        segment = self.catalog.segments[0]
        entry = segment.index.entry(0)
        self.set("_RECORD_BYTES", 0)
        self.set("_CACHED_BYTES", 4 * (entry.end - entry.position) - 4)
        assert self.catalog.records(segment, entry) is not self.catalog.records(segment, entry)

    def test_the_objects_of_small_records_count(self) -> None:
        path = scratch(self)
        with history(path) as log:
            for number in range(300):
                log.put("a", [b"%d" % number])
        view = LogView(path)
        self.addCleanup(view.close)
        segment = view.catalog.segments[0]
        entry = segment.index.entry(1)
        assert len(view.catalog.records(segment, entry)) >= 300
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        copies = [list(segment.records(entry)) for _ in range(10)]
        taken = tracemalloc.get_traced_memory()[0] / len(copies)
        assert 0.7 < taken / view.catalog._record_bytes < 1.3
