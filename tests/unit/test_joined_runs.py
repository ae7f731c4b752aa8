"""Small runs of several publishers, which are read from the history together."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.routing.batch import Batch, Page
from pubsub.kernel import Columns, Senders
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.memory_store import MemoryStore
from pubsub.store.reading import joined_runs
from pubsub.store.reading.joined_runs import ROW_BYTES, SMALL, JoinedRuns, decode_joined
from pubsub.store.reading.log_reader import read_page
from pubsub.store.reading.mixed_rows import rows_among
from pubsub.store.reading.run_log import RunLog
from pubsub.store.records.block import decode_block, encode_block
from pubsub.store.records.stored_runs import RunRecord, StoredRun, batches_of, record_of
from tests.profiles import examples
from tests.unit.fakes import Reader, Transport, clock_at, make_broker, make_listener, scratch
from tests.unit.kinds_of_encodings import encoding_of
from tests.unit.upkeep_log import Log

TOPICS = ("a", "b", "c")
SENDERS = (b"ada", b"bob", b"", b"dan")
PROTOCOLS = ("toy", "toy", "toy", "nsd")
Flat = tuple[int, int, int, str, bytes, str, bytes, object]
"""Offset, sequence, timestamp, topic, sender, protocol, payload and headers of a message."""


@dataclass
class Appended:
    """What one call of ``IStore.append`` gets, after ``gap`` offsets without messages."""

    batch: Batch
    senders: Senders | None
    gap: int


@st.composite
def appended(draw: st.DrawFn) -> Appended:
    number = draw(st.sampled_from((1, 1, 1, 2, 5, SMALL + 1, 70)))
    one_size = draw(st.booleans())
    sizes = st.just(draw(st.integers(0, 3))) if one_size else st.integers(0, 3)
    letter = draw(st.integers(0, 9))
    payloads = [draw(sizes) * (b"%d" % ((letter + place) % 10)) for place in range(number)]
    topics = TOPICS if draw(st.booleans()) else (draw(st.sampled_from(TOPICS)),)
    indexes = [draw(st.integers(0, len(topics) - 1)) for _ in range(number)]
    senders = None
    headers = None
    if draw(st.booleans()):
        # Consecutive messages of one topic may share an entry.
        starts = [
            place
            for place in range(number)
            if not place or indexes[place] != indexes[place - 1] or draw(st.booleans())
        ]
        counts = array("I", [stop - start for start, stop in pairwise([*starts, number])])
        names = tuple(draw(st.sampled_from(SENDERS)) for _ in counts)
        senders = counts.tobytes(), names
    elif draw(st.sampled_from((False, False, True))):
        headers = [{"k": b"v"}] * number
    batch = Batch(
        topics,
        Columns.of(payloads, indexes),
        draw(st.integers(1, 4)) * 1000,
        draw(st.integers(0, 9)) * 100,
        draw(st.sampled_from(SENDERS)),
        draw(st.sampled_from(PROTOCOLS)),
        headers,
    )
    return Appended(batch, senders, draw(st.sampled_from((0, 0, 0, 2))))


APPENDED = st.lists(appended(), min_size=1, max_size=12)
TOPIC_SETS = st.none() | st.frozensets(st.sampled_from(TOPICS), min_size=1)


def flat(batches: Iterable[Batch]) -> list[Flat]:
    """Return the messages of batches, one by one."""
    found: list[Flat] = []
    for batch in batches:
        for part in batch.parts():
            for index, run in part.runs():
                assert run.topic == batch.topics[index]
                headers: Sequence[object] = run.headers or [None] * run.count
                for at, payload in enumerate(run.payloads()):
                    found.append(
                        (run.offset + at, run.sequence + at, run.timestamp, run.topic, run.sender,
                         run.protocol, payload, headers[at])
                    )  # fmt: skip
    return found


BOUNDS = st.sampled_from(((2048, 64, 512), (4, 64, 512), (12, 3, 5)))
"""Messages of a run that are looked at together, rows worth a batch, and those of a batch."""


@contextmanager
def bounded(bounds: tuple[int, int, int]) -> Iterator[None]:
    with ExitStack() as patches:
        for name, bound in zip(("_LOOKED", "_MANY", "_ROWS"), bounds, strict=True):
            patches.enter_context(patch.object(joined_runs, name, bound))
        yield


class BlockTests(SynchronousTestCase):
    """``decode_joined``"""

    @examples(2)
    @given(APPENDED, TOPIC_SETS, st.integers(0, 60), st.integers(0, 60), st.integers(0, 40), BOUNDS)
    def test_it_has_the_messages_of_decode_block(
        self,
        appended: list[Appended],
        topics: frozenset[str] | None,
        start: int,
        stop: int,
        hidden: int,
        bounds: tuple[int, int, int],
    ) -> None:
        records: list[RunRecord] = []
        offset = 7
        for one in appended:
            offset += one.gap
            one.batch.offset = offset
            records.append(record_of(one.batch, one.senders))
            offset += one.batch.count
        block = encode_block(records, 3, 7, offset)

        def first_of(topic: str) -> int:
            return hidden if topic == "b" else 0

        plain = [
            message
            for run in decode_block(block, topics)
            for shown in run.shown(first_of)
            for message in flat([shown.batch()])
            if start <= message[0] < stop
        ]
        joined: list[Batch] = []
        with bounded(bounds):
            found = list(decode_joined(block, topics, first_of, start, stop))
        for run in found:
            if isinstance(run, Batch):
                assert run.run == 3
                assert start <= run.offset < run.stop <= stop
                joined.append(run)
            else:
                joined += [shown.batch() for shown in run.shown(first_of)]
        assert [one for one in flat(joined) if start <= one[0] < stop] == plain

    def test_small_runs_are_one_batch(self) -> None:
        log = RunLog(1000, 2**20)
        for number in range(300):
            log.append(single(number))
        records = list(log._runs)
        block = encode_block(records, 3, 0, 300)
        for start, count in ((0, 300), (10, 290), (299, 1)):
            (batch,) = decode_joined(block, None, lambda topic: 0, start, 300)
            assert isinstance(batch, Batch)
            assert batch.count == count
            assert (batch.offset, batch.stop) == (start, 300)
        assert not any(
            isinstance(run, StoredRun)
            for run in decode_joined(block, frozenset("b"), lambda topic: 0, 100, 200)
        )

    def test_some_topics_of_a_read_are_one_batch(self) -> None:
        """Whatever the number of reads, if each has several topics."""
        records = []
        for number in range(10):
            columns = Columns.of([b"%d" % place for place in range(60)], [0, 1, 2] * 20)
            read = replace(single(0), topics=TOPICS, columns=columns, offset=60 * number)
            records.append(record_of(read))
        block = encode_block(records, 3, 0, 600)
        (batch,) = decode_joined(block, frozenset("ac"), lambda topic: 0, 30, 570)
        assert isinstance(batch, Batch)
        assert batch.count == 360
        assert [one[6] for one in flat([batch])][:3] == [b"30", b"32", b"33"]
        log = RunLog(1000, 2**20)
        for _ in range(10):
            columns = Columns.of([b"%d" % place for place in range(60)], [0, 1, 2] * 20)
            log.append(replace(single(0), topics=TOPICS, columns=columns))
        page = log.read(30, frozenset("ac"), 2**20, joined=True)
        assert [batch.count for batch in page.batches] == [20, *[40] * 9]

    def test_a_batch_has_a_bounded_number_of_rows(self) -> None:
        """A page is cut between batches."""
        records = [record_of(replace(single(number), offset=number)) for number in range(1300)]
        block = encode_block(records, 3, 0, 1300)
        found = list(decode_joined(block, None, lambda topic: 0, 0, 1300))
        assert [one.count for one in found] == [512, 512, 276]
        log = RunLog(2000, 2**20)
        for number in range(1300):
            log.append(single(number))
        page = log.read(0, None, 2**20, joined=True)
        assert [one.count for one in page.batches] == [512, 512, 276]

    def test_large_messages_fill_a_page_soon(self) -> None:
        log = Log(scratch(self) / "history")
        self.addCleanup(log.close)
        records = []
        for number in range(100):
            one = replace(single(number), columns=Columns.one(bytes(50_000)), offset=number)
            records.append(record_of(one))
        log.writer.write(WriteGroup(records), sync=False)
        at = count = 0
        while at < 100:
            page = read_page(log.catalog, at, None, 256 * 1024, joined=True)
            assert sum(batch.nbytes for batch in page.batches) <= 300_000
            count += sum(batch.count for batch in page.batches)
            at = page.next_offset
        assert count == 100


def single(number: int) -> Batch:
    """Return one message."""
    return Batch(
        (TOPICS[number % 3],),
        Columns.one(b"%d" % number),
        1_700_000_000_000_000 + number * 100,
        number,
        SENDERS[number % 4],
        "toy",
    )


class RunLogTests(SynchronousTestCase):
    """``RunLog.read``"""

    @examples(2)
    @given(
        APPENDED,
        TOPIC_SETS,
        st.integers(0, 40),
        st.sampled_from((1, 100, 400, 2**20)),
        st.none() | st.tuples(st.sampled_from(TOPICS), st.integers(0, 11)),
        BOUNDS,
    )
    def test_joined_pages_have_the_same_messages(
        self,
        appended: list[Appended],
        topics: frozenset[str] | None,
        start: int,
        nbytes: int,
        ended: tuple[str, int] | None,
        bounds: tuple[int, int, int],
    ) -> None:
        log = RunLog(1000, 2**20)
        for number, one in enumerate(appended):
            log.append(one.batch, one.senders)
            if ended is not None and number == ended[1]:
                log.forget(ended[0], log.next_offset)
        plain = self.pages(lambda at: log.read(at, topics, nbytes), start, log.next_offset)
        with bounded(bounds):
            joined = self.pages(
                lambda at: log.read(at, topics, nbytes, joined=True), start, log.next_offset
            )
        assert flat(joined) == flat(plain)

    def pages(self, read: Callable[[int], Page], at: int, stop: int) -> list[Batch]:
        found: list[Batch] = []
        while at < stop:
            page = read(at)
            assert page.next_offset > at
            found += page.batches
            at = page.next_offset
        return found

    def test_single_messages_are_one_batch(self) -> None:
        log = RunLog(1000, 2**20)
        for number in range(30):
            log.append(single(number))
        assert [batch.count for batch in log.read(0, None, 2**20, joined=True).batches] == [30]
        (batch,) = log.read(0, frozenset("b"), 2**20, joined=True).batches
        assert (batch.count, batch.offset, batch.stop) == (10, 1, 29)


class LargeRunTests(SynchronousTestCase):
    """A large run of several topics, of which some are wanted"""

    def setUp(self) -> None:
        topics = tuple(f"t{number}" for number in range(40))
        payloads = [b"%d" % number for number in range(20_000)]
        columns = Columns.of(payloads, [number * 7 % 40 for number in range(20_000)])
        self.batch = replace(single(0), topics=topics, columns=columns)
        self.wanted = frozenset(topics[:20])

    def test_a_page_ends_within_it(self) -> None:
        """Otherwise a page would take the reactor tens of milliseconds."""
        log = RunLog(100_000, 2**30)
        log.append(self.batch)
        at, found = 0, list[Batch]()
        while at < log.next_offset:
            page = log.read(at, self.wanted, 256 * 1024, joined=True)
            rows = sum(1 if one.rows is None else len(one.rows.counts) for one in page.batches)
            assert rows * ROW_BYTES < 2 * 256 * 1024
            found += page.batches
            at = page.next_offset
        assert [one[6] for one in flat(found)] == [
            b"%d" % number for number in range(20_000) if number * 7 % 40 < 20
        ]

    def test_a_reader_of_many_topics_does_not_look_at_each_of_them(self) -> None:
        """It would for each run, of which hundreds may be in a page."""

        class Many(frozenset[str]):
            def __iter__(self) -> Iterator[str]:
                raise AssertionError("all topics of the reader were looked at")

        log = RunLog(100_000, 2**30)
        log.append(self.batch)
        wanted = Many(f"t{number}" for number in range(1, 100))
        (found, *_) = log.read(0, wanted, 1000, joined=True).batches
        assert found.topics == self.batch.topics[1:]

    def test_only_what_the_page_has_room_for_is_decoded(self) -> None:
        block = encode_block([record_of(replace(self.batch, offset=0))], 3, 0, 20_000)
        found = decode_joined(block, self.wanted, lambda topic: 0, 0, 20_000)
        with patch.object(joined_runs, "rows_among", wraps=rows_among) as looked:
            next(found)
        ((batch, _),) = [call.args for call in looked.call_args_list]
        assert batch.count < 5000


class LogTests(SynchronousTestCase):
    """``read_page`` of a log on disk"""

    @examples(2)
    @given(
        st.lists(st.lists(appended(), min_size=1, max_size=4), min_size=1, max_size=5),
        TOPIC_SETS,
        st.integers(0, 40),
        st.sampled_from((1, 100, 400, 2**20)),
        st.none() | st.sampled_from(TOPICS),
        BOUNDS,
    )
    def test_joined_pages_have_the_same_messages(
        self,
        groups: list[list[Appended]],
        topics: frozenset[str] | None,
        start: int,
        nbytes: int,
        ended: str | None,
        bounds: tuple[int, int, int],
    ) -> None:
        with closing(Log(scratch(self) / "log")) as log, bounded(bounds):
            for number, group in enumerate(groups):
                write(log, group)
                if number == 1 and ended is not None:
                    log.end(ended)
            found: list[list[Flat]] = []
            for joined in (False, True):
                found.append([])
                at = start
                while at < log.next:
                    page = read_page(log.catalog, at, topics, nbytes, joined=joined)
                    assert page.next_offset > at
                    found[-1] += flat(page.batches)
                    at = page.next_offset
            assert found[0] == found[1]

    def test_a_page_is_bounded(self) -> None:
        with closing(Log(scratch(self) / "log")) as log:
            write(log, [Appended(single(number), None, 0) for number in range(1300)])
            for nbytes, stop in ((1, 512), (512 * 128, 512), (513 * 160, 1024), (2**20, 1300)):
                page = read_page(log.catalog, 0, None, nbytes, joined=True)
                assert page.next_offset == stop


def write(log: Log, group: Sequence[Appended]) -> None:
    """Write what was appended as one record."""
    records = []
    for one in group:
        one.batch.offset = log.next
        log.next += one.batch.count
        records.append(record_of(one.batch, one.senders))
    log.writer.write(WriteGroup(records), sync=False)


class PartTests(SynchronousTestCase):
    """Slices of a batch with rows"""

    @given(APPENDED, st.integers(0, 40), st.integers(1, 40))
    def test_they_have_the_rows_of_their_messages(
        self, appended: list[Appended], start: int, number: int
    ) -> None:
        found: list[Batch] = []
        joined = JoinedRuns(found)
        offset = 0
        for one in appended:
            one.batch.offset = offset
            offset += one.batch.count
            for run in batches_of(record_of(one.batch, one.senders)):
                joined.add(
                    (run.count, run.topic, run.offset, run.sequence, run.timestamp, run.sender,
                     array("I", run.columns.sizes()), b"".join(run.payloads())),
                    "toy",
                    0,
                )  # fmt: skip
        joined.finish()
        (batch,) = found
        start = min(start, batch.count - 1)
        stop = min(start + number, batch.count)
        part = batch.slice(start, stop)
        assert flat([part]) == flat([batch])[start:stop]
        assert part.stop == flat([part])[-1][0] + 1
        assert flat([run for _, run in part.runs()]) == flat([part])
        wanted = {0}
        assert flat([run for _, run in part.runs(wanted)]) == [
            message for message in flat([part]) if message[3] == batch.topics[0]
        ]


class NotFromBob(Reader):
    """A subscriber that does not receive the messages of one sender on the topic a."""

    def receives(self, topic: Any, batch: Batch) -> bool:
        return topic.name != "a" or batch.sender != b"bob"


class CursorTests(SynchronousTestCase):
    """Subscribers that read such messages get what they would get of each run"""

    @examples(1)
    @given(
        APPENDED,
        st.lists(
            st.tuples(
                st.sampled_from(("times", "senders", "rows", "frames", "lines", "small")),
                st.dictionaries(st.integers(0, 2), st.integers(0, 20), min_size=1),
                st.booleans(),
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def test_any_encoding(
        self, appended: list[Appended], subscribers: list[tuple[str, dict[int, int], bool]]
    ) -> None:
        found = []
        for joins in (False, True):

            class Store(MemoryStore):
                def read(self, *given: Any, joined: bool = False, **named: Any) -> Deferred[Page]:
                    return super().read(*given, joined=joined and joins, **named)  # type: ignore[misc]  # noqa: B023

            clock, store = clock_at(), Store(10_000, 2**24)
            broker = make_broker(clock, BrokerLimits(), store)
            listener = make_listener(broker)
            topics = [broker.topics.create(name) for name in TOPICS]
            for one in appended:
                store.append(one.batch, one.senders)
            transports = []
            for kind, starts, is_picky in subscribers:
                transport = Transport()
                outbox = listener.outbox(transport, NotFromBob() if is_picky else Reader())
                transport.outbox = outbox
                transports.append(transport)
                for topic, start in starts.items():
                    encoding = encoding_of(kind, topic)
                    at = min(start, store.next_offset)
                    broker.router.subscribe(outbox, topics[topic], encoding, at)
            for _ in range(50):
                clock.advance(0)
            assert all(one.outbox and one.outbox.cursor is None for one in transports)
            drops = sorted((topic, why, n) for (_, topic, why), n in broker.counters.drops.items())
            found.append(([one.data for one in transports], broker.counters.delivered, drops))
        assert found[0] == found[1]
