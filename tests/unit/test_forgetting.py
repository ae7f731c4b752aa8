"""Topics that have ended: their messages are hidden, and their memory is released later."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch, messages_nbytes
from pubsub.http_api.reading.stream_formats import batches_of
from pubsub.kernel import Columns
from pubsub.store.memory_store import parcel_of
from pubsub.store.reading import run_log
from pubsub.store.reading.mixed_rows import MixedRows, places_of
from pubsub.store.reading.run_log import RunLog
from pubsub.store.records.stored_runs import MESSAGE_BYTES, RunRecord, first_offset_of, split
from tests.unit.fakes import mixed_batch


def batch(topic: str, *payloads: bytes) -> Batch:
    """A batch of ``payloads``."""
    return Batch((topic,), Columns.of(list(payloads)), 1, 0, b"", "cafe")


class ForgettingTests(SynchronousTestCase):
    """``RunLog.forget``"""

    def setUp(self) -> None:
        self.log = RunLog(10**6, 10**9)

    def read(self, *topics: str) -> list[bytes]:
        """All payloads of ``topics``, or of all topics."""
        page = self.log.read(0, frozenset(topics) or None, 10**9)
        assert page.next_offset == self.log.next_offset
        return [payload for each in page.batches for payload in each.payloads()]

    def test_earlier_messages_are_hidden_and_later_ones_are_shown(self) -> None:
        self.log.append(batch("a", b"old", b"old"))
        self.log.append(batch("b", b"theirs"))
        self.log.forget("a")
        assert self.read("a") == []
        assert self.read() == [b"theirs"]
        self.log.append(batch("a", b"new"))
        assert self.read("a") == [b"new"]
        assert self.read() == [b"theirs", b"new"]

    def test_it_may_end_again(self) -> None:
        for number in range(3):
            self.log.append(batch("a", b"%d" % number))
            assert self.read("a") == [b"%d" % number]
            self.log.forget("a")
        assert self.read() == []

    def test_offsets_go_on(self) -> None:
        self.log.append(batch("a", b"1", b"2"))
        self.log.forget("a")
        self.log.append(batch("b", b"3"))
        assert [each.offset for each in self.log.read(0, None, 10**9).batches] == [2]

    def test_many_that_ended_do_not_pile_up(self) -> None:
        limit = 100
        self.patch(run_log, "_FORGOTTEN", limit)  # type: ignore[no-untyped-call]
        self.log.append(batch("stays", b"here"))
        for number in range(limit + 1):
            self.log.append(batch(f"exclusive/{number}", bytes(1000)))
            self.log.forget(f"exclusive/{number}")
        assert self.read() == [b"here"]
        assert self.log.nbytes < 1000
        self.log.append(batch("stays", b"too"))
        assert self.read() == [b"here", b"too"]

    def test_they_are_removed_in_steps(self) -> None:
        self.patch(run_log, "_FORGOTTEN", 10)  # type: ignore[no-untyped-call]
        self.patch(run_log, "_EXAMINED", 7)  # type: ignore[no-untyped-call]
        stays: list[bytes] = []
        for number in range(100):
            stays.append(b"%d" % number)
            self.log.append(batch(f"short/{number}", bytes(1000)))
            self.log.append(batch("stays", stays[-1]))
        whole = self.log.nbytes
        for number in range(60):
            before = self.log.nbytes
            self.log.forget(f"short/{number}")
            # One step, of which a half are messages of topics that have ended.
            assert before - self.log.nbytes < 5 * 1200
            assert self.read("stays") == stays
            assert self.read(f"short/{number}") == []
            assert len(self.read()) == 199 - number
            if number % 9 == 0:
                # One that comes back during a pass, and ends again.
                self.log.append(batch("short/0", b"again"))
                assert self.read("short/0") == [b"again"]
                self.log.forget("short/0")
                assert self.read("short/0") == []
        assert len(self.log._forgotten) < 60
        assert self.log.nbytes < whole - 20_000

    def test_a_step_has_a_bounded_number_of_messages(self) -> None:
        self.patch(run_log, "_FORGOTTEN", 2)  # type: ignore[no-untyped-call]
        self.patch(run_log, "_MESSAGES", 150)  # type: ignore[no-untyped-call]
        for _ in range(10):
            self.log.append(mixed_batch([("gone", bytes(100)), ("a", b"x")] * 50, ("gone", "a")))
        steps = []
        for name in ("gone", "b", "c", "d", "e", "f", "g", "h"):
            before = self.log.nbytes
            self.log.forget(name)
            steps.append(before - self.log.nbytes)
            assert self.read() == [b"x"] * 500
        # Two batches in each, in which a run for each message that stays takes more than before.
        assert steps[:2] == [0, 0]
        assert len(set(steps[2:7])) == 1
        assert steps[2] == steps[6] != 0
        assert steps[7] == 0

    def test_the_oldest_messages_may_leave_meanwhile(self) -> None:
        self.patch(run_log, "_FORGOTTEN", 10)  # type: ignore[no-untyped-call]
        self.patch(run_log, "_EXAMINED", 7)  # type: ignore[no-untyped-call]
        self.log = RunLog(50, 10**9)
        for number in range(500):
            self.log.append(batch(f"short/{number}", b"x"))
            self.log.append(batch("stays", b"%d" % number))
            self.log.forget(f"short/{number}")
            page = self.log.read(self.log.first_offset, None, 10**9)
            shown = [payload for one in page.batches for payload in one.payloads()]
            assert shown == [b"%d" % one for one in range(max(number - 24, 0), number + 1)]
        assert len(self.log._forgotten) < 40

    def test_messages_stay_when_others_are_removed_for_both_reasons(self) -> None:
        self.patch(run_log, "_FORGOTTEN", 2)  # type: ignore[no-untyped-call]
        self.log = RunLog(5, 10**9)
        for number in range(8):
            self.log.append(batch("stays", b"%d" % number))
        for number in range(3):
            self.log.forget(f"gone {number}")
        assert self.read() == [b"3", b"4", b"5", b"6", b"7"]
        assert self.log.first_offset == 3

    def test_messages_of_several_topics_in_one_batch(self) -> None:
        for round_ in (b"1", b"2"):
            self.log.append(mixed_batch([("a", b"a" + round_), ("b", b"b" + round_)], ("a", "b")))
            assert self.read("a") == [b"a" + round_]
            assert self.read("b") == ([b"b1"] if round_ == b"1" else [b"b1", b"b2"])
            assert self.read("c") == []
            assert self.read()[-2:] == [b"a" + round_, b"b" + round_]
            self.log.forget("a")
            assert self.read("a") == []
        assert self.read() == self.read("a", "b") == [b"b1", b"b2"]

    def test_a_read_examines_a_bounded_number_of_messages(self) -> None:
        """Other clients wait meanwhile, and a rare topic can be among any number of messages."""
        self.patch(run_log, "_SCAN_MESSAGES", 100)  # type: ignore[no-untyped-call]
        for number in range(10):
            sent = [("often", b"x")] * 39 + [("rare", b"%d" % number)]
            self.log.append(mixed_batch(sent, ("often", "rare")))
        rare = frozenset({"rare"})
        reached, found = self.pages(rare)
        assert reached == [120, 240, 360, 400]
        assert found == [b"%d" % number for number in range(10)]
        # Runs that cannot have any of its messages are not examined.
        assert self.pages(frozenset({"none"})) == ([400], [])

    def test_a_read_divides_a_part_of_a_large_run(self) -> None:
        self.patch(run_log, "_SCAN_MESSAGES", 100)  # type: ignore[no-untyped-call]
        names = ("a", "b", "c")
        self.log.append(mixed_batch([(name, name.encode()) for name in names * 100], names))
        wanted = frozenset({"a", "b"})
        assert self.pages(wanted) == ([100, 200, 300], [b"a", b"b"] * 100)
        self.log.forget("b")
        assert self.pages(wanted) == ([100, 200, 300], [b"a"] * 100)
        assert self.pages(None) == ([100, 200, 300], [b"a", b"c"] * 100)

    def test_a_joined_read_passes_over_topics_that_have_ended(self) -> None:
        """As if they were not wanted: no message of a large run is looked at by itself."""
        self.log.append(mixed_batch([("a", b"a"), ("b", b"b")] * 3000, ("a", "b")))
        self.log.forget("b")
        with patch.object(MixedRows, "within", None):
            page = self.log.read(0, None, 10**4, joined=True)
        assert {topic for one in page.batches for topic in one.topics} == {"a"}
        assert 0 < page.next_offset < 6000

    def test_a_read_compares_a_bounded_number_of_topics(self) -> None:
        """Runs of thousands of topics each may follow one another, without any that is wanted."""
        self.patch(run_log, "_SCAN_MESSAGES", 5)  # type: ignore[no-untyped-call]
        for number in range(10):
            names = tuple(f"{number}/{place}" for place in range(64))
            self.log.append(mixed_batch([(name, b"x") for name in names], names))
        none = frozenset({"none"})
        known = places_of.cache_info().misses
        assert self.pages(none) == ([192, 384, 576, 640], [])
        # Nor is it noted where the topics of such a run are.
        assert places_of.cache_info().misses == known
        records, reached = self.log.records_from(0, 640, none, 10**9)
        assert (len(records), reached) == (0, 192)

    def test_messages_of_a_parcel_are_not_divided_in_the_reactor(self) -> None:
        """The thread that encodes them leaves out those that are not wanted."""
        for number in range(10):
            sent = [("often", b"x")] * 39 + [("rare", b"%d" % number)]
            self.log.append(mixed_batch(sent, ("often", "rare")))
        self.log.append(batch("often", b"y"))
        self.patch(run_log, "split", None)  # type: ignore[no-untyped-call]
        rare = frozenset({"rare"})
        records, reached = self.log.records_from(0, 401, rare, 10**9)
        assert [first_offset_of(record) for record in records] == list(range(0, 400, 40))
        assert reached == 401
        parcel = parcel_of(self.log, 7, 0, 401, rare, 10**9)
        assert [one.payloads() for one in batches_of(parcel)] == [
            [b"%d" % number for number in range(10)]
        ]
        # As much as fits, and no more.
        records, reached = self.log.records_from(0, 401, rare, 2 * (40 + 40 * MESSAGE_BYTES))
        assert (len(records), reached) == (2, 80)
        assert self.log.records_from(0, 401, frozenset({"none"}), 10**9) == ([], 401)

    def test_a_parcel_ends_after_many_records_that_were_divided(self) -> None:
        """That is done in the reactor: other clients wait meanwhile."""
        self.patch(run_log, "_SCAN", 25)  # type: ignore[no-untyped-call]
        for _ in range(10):
            self.log.append(mixed_batch([("a", b"1"), ("b", b"2")] * 10, ("a", "b")))
        self.log.forget("a")
        reached, found = 0, list[RunRecord]()
        while reached < 200:
            before = reached
            records, reached = self.log.records_from(before, 200, None, 10**9)
            # Also within a record, as one may have tens of thousands of messages.
            assert len(records) <= 26
            assert before < reached
            found += records
        assert list(map(first_offset_of, found)) == list(range(1, 200, 2))

    def test_a_parcel_has_no_messages_that_are_hidden(self) -> None:
        for _ in range(3):
            self.log.append(mixed_batch([("a", b"1"), ("b", b"2"), ("b", b"3")], ("a", "b")))
        self.log.forget("a", 6)
        self.log.append(batch("a", b"4"))
        parcel = parcel_of(self.log, 7, 0, 10, None, 10**9)
        assert [payload for one in batches_of(parcel) for payload in one.payloads()] == [
            *[b"2", b"3"] * 2, b"1", b"2", b"3", b"4"
        ]  # fmt: skip

    def pages(self, topics: frozenset[str] | None) -> tuple[list[int], list[bytes]]:
        """Return the offsets that reads reach, and the payloads."""
        reached, found = [0], []
        while reached[-1] < self.log.next_offset:
            page = self.log.read(reached[-1], topics, 10**9)
            found += [payload for each in page.batches for payload in each.payloads()]
            reached.append(page.next_offset)
        return reached[1:], found

    def counted(self, start: int, stop: int) -> dict[str, tuple[int, int]]:
        """Return the totals of a range, from its messages one by one."""
        found: dict[str, tuple[int, int]] = {}
        for page in self.log.read(0, None, 10**9).batches:
            for _, run in page.runs():
                for at in range(run.count):
                    if start <= run.offset + at < stop:
                        one = run.slice(at, at + 1)
                        nbytes = messages_nbytes(one.columns, one.sender, one.headers)
                        before = found.get(one.topic, (0, 0))
                        found[one.topic] = before[0] + 1, before[1] + nbytes
        return found

    def test_the_totals_of_ranges(self) -> None:
        """Of whole runs, parts of runs, and runs with messages that are hidden."""
        for number in range(4):
            self.log.append(batch("a", b"1", b"22"))
            self.log.append(mixed_batch([(n, n.encode() * 3) for n in "abcab"], ("a", "b", "c")))
            both = mixed_batch([("b", b"x"), ("c", b"yy"), ("c", b"")], ("b", "c"))
            self.log.append(both, (array("I", [1, 2]).tobytes(), (b"ada", b"bo")))
            named = batch("d", b"12", b"3")
            named.headers = [{"key": b"value"}, {}]
            self.log.append(named)
            if number == 2:
                self.log.forget("a")
                self.log.forget("d", 20)
        end = self.log.next_offset
        for start in range(end + 1):
            for stop in range(start, end + 2):
                assert self.log.totals(start, stop) == self.counted(start, stop), (start, stop)

    def test_whole_runs_are_not_divided_to_be_counted(self) -> None:
        """Of a million messages that would take seconds, and nobody else would be served."""
        for _ in range(50):
            self.log.append(mixed_batch([("a", b"1"), ("b", b"2")] * 10, ("a", "b")))
        self.log.forget("elsewhere")
        divided: list[RunRecord] = []

        def counted(record: RunRecord) -> Iterable[RunRecord]:
            divided.append(record)
            return split(record)

        self.patch(run_log, "split", counted)  # type: ignore[no-untyped-call]
        assert self.log.totals(5, 995) == {"a": (495, 495 * 6), "b": (495, 495 * 6)}
        assert len(divided) == 2

    def test_messages_that_stay_take_no_more_memory(self) -> None:
        """A run for each of them would take several times as much, and others would be removed."""
        self.patch(run_log, "_FORGOTTEN", 10)  # type: ignore[no-untyped-call]
        names = tuple(f"stays {number}" for number in range(100))
        read = [(name, name.encode()) for name in names]
        self.log.forget(names[0])
        for _ in range(20):
            self.log.append(mixed_batch(read, names))
        before, stays = self.log.nbytes, self.read()
        self.log.max_bytes = before + 10_000
        for number in range(30):
            self.log.forget(f"gone {number}")
        assert self.log.nbytes == before
        self.log.append(batch("more", b"x"))
        assert self.read() == [*stays, b"x"]

    def test_messages_that_end_leave_a_batch_of_several_topics(self) -> None:
        self.patch(run_log, "_FORGOTTEN", 10)  # type: ignore[no-untyped-call]
        for number in range(20):
            self.log.append(
                mixed_batch([("a", b"a"), (f"gone {number}", bytes(1000))], ("a", f"gone {number}"))
            )
            self.log.append(mixed_batch([("a", b"b"), ("b", b"c")], ("a", "b")))
        for number in range(20):
            self.log.forget(f"gone {number}")
            assert self.read("b") == [b"c"] * 20
        assert self.read() == [b"a", b"b", b"c"] * 20
        assert self.log.nbytes < 25_000
