"""Arrow record batches have the messages of their blocks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch, message_id, messages_nbytes
from pubsub.kernel import Columns
from pubsub.store.reading import arrow
from pubsub.store.reading.arrow_values import ROWS
from pubsub.store.records.block import Block, decode_block, encode_block
from pubsub.store.records.parcel import Parcel
from pubsub.store.records.record import decode_block as decode_record
from pubsub.store.records.record import decode_head, encode, record_of_runs
from pubsub.store.records.stored_runs import RunRecord, record_of, topics_of
from tests.unit.block_batches import TOPICS, batches
from tests.unit.fakes import batch_of, mixed_batch

RUNS = st.integers(0, 2**60 - 1)
SEQUENCES = st.integers(0, 2**20) | st.integers(2**62 - 2000, 2**62 - 1000)


def block_of(runs: list[RunRecord], run: int, base: int, stop: int) -> Block:
    """The block of a record of the log."""
    buffers, _ = encode(record_of_runs(runs, (), base, stop, run), b"salt", 1, stop)
    data = memoryview(b"".join(buffers))
    head = decode_head(data, b"salt")
    assert head is not None
    return decode_record(head, data)


@st.composite
def mixes(draw: st.DrawFn) -> Batch:
    """A batch with messages of several topics."""
    made = draw(batches())
    listed = draw(st.permutations(TOPICS))[: draw(st.integers(2, len(TOPICS)))]
    picks = st.integers(0, len(listed) - 1)
    indexes = draw(st.lists(picks, min_size=made.count, max_size=made.count))
    columns = Columns.of(made.payloads(), indexes)
    return dataclasses.replace(made, topics=tuple(listed), columns=columns)


@st.composite
def blocks(draw: st.DrawFn) -> list[Block]:
    """Neighbouring blocks of one broker run or several, without some of their messages."""
    found = []
    base = draw(st.integers(0, 2**40))
    run = draw(RUNS)
    of_log = draw(st.booleans())
    kind = batches() | mixes() if of_log else batches()
    encode_runs = block_of if of_log else encode_block
    for _ in range(draw(st.integers(1, 4))):
        at = base
        runs = []
        for batch in draw(st.lists(kind, min_size=1, max_size=6)):
            batch.offset = at
            batch.sequence = draw(SEQUENCES)
            at += batch.count
            if draw(st.integers(0, 4)):
                runs.append(record_of(batch))
        if draw(st.integers(0, 3)) == 0:
            run = draw(RUNS)
        found.append(encode_runs(runs, run, base, at))
        base = at
    return found


def parcel_of(
    found: list[Block], topics: frozenset[str], start: int | None = None, stop: int | None = None
) -> Parcel:
    """A parcel of these blocks, by default with all their messages."""
    return Parcel(
        found[0].base if start is None else start,
        found[-1].stop if stop is None else stop,
        0,
        tuple((block, topics) for block in found),
    )


def expected(parcel: Parcel, partition: int = 0) -> list[dict[str, Any]]:
    """The rows of a parcel, taken from its blocks message by message."""
    rows = []
    for block, topics in parcel.blocks:
        for run in decode_block(block, topics):
            for _, batch in run.batch().runs():
                rows += [row(batch, i, block.run, partition) for i in range(batch.count)]
    return [one for one in rows if parcel.start <= one["offset"] < parcel.stop]


def row(batch: Batch, index: int, run: int, partition: int) -> dict[str, Any]:
    """One message as a row."""
    headers = {} if batch.headers is None else batch.headers[index]
    return {
        "topic": batch.topic,
        "partition": partition,
        "offset": batch.offset + index,
        "timestamp": batch.timestamp,
        "protocol": batch.protocol,
        "key": batch.sender,
        "value": batch.payloads()[index],
        "message_id": str(message_id(run, batch.sequence + index)),
        "headers": [{"key": key, "value": value} for key, value in headers.items()],
    }


def rows_of(found: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows of record batches, with the timestamp in µs; the batches are validated."""
    rows: list[dict[str, Any]] = []
    for batch in found:
        batch.validate(full=True)
        assert 0 < batch.num_rows <= ROWS
        place = batch.schema.get_field_index("timestamp")
        plain = batch.set_column(place, "timestamp", batch["timestamp"].view(pa.int64()))
        rows += plain.to_pylist()
    return rows


def without_headers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without one column."""
    return [{key: value for key, value in one.items() if key != "headers"} for one in rows]


class TotalsTests(SynchronousTestCase):
    """Messages and bytes by topic"""

    @given(st.lists(batches() | mixes(), min_size=1, max_size=5))
    def test_a_block_has_the_totals_of_its_messages(self, appended: list[Batch]) -> None:
        records, at = [], 0
        expected: dict[str, tuple[int, int]] = {}
        for batch in appended:
            batch.offset, at = at, at + batch.count
            records.append(record_of(batch))
            for _, run in batch.runs():
                count, nbytes = expected.get(run.topic, (0, 0))
                more = messages_nbytes(run.columns, run.sender, run.headers)
                expected[run.topic] = (count + run.count, nbytes + more)
        assert topics_of(records) == expected
        assert block_of(records, 1, 0, at).totals() == expected


class ColumnTests(SynchronousTestCase):
    """Blocks to columns"""

    @given(blocks(), st.integers(0, 3))
    def test_every_message_is_a_row(self, found: list[Block], partition: int) -> None:
        parcel = parcel_of(found, frozenset(TOPICS))
        made = list(arrow.batches(parcel, headers=True, partition=partition))
        assert rows_of(made) == expected(parcel, partition)
        assert all(batch.schema.equals(arrow.schema(headers=True)) for batch in made)

    @given(blocks(), st.data())
    def test_a_range_of_some_topics(self, found: list[Block], data: st.DataObject) -> None:
        offsets = st.integers(found[0].base - 1, found[-1].stop + 1)
        start, stop = sorted([data.draw(offsets), data.draw(offsets)])
        topics = data.draw(st.frozensets(st.sampled_from([*TOPICS, "alice", "cafe"])))
        parcel = parcel_of(found, topics, start, stop)
        made = list(arrow.batches(parcel))
        assert rows_of(made) == without_headers(expected(parcel))

    @given(blocks(), st.data())
    def test_topics_may_expire_block_by_block(
        self, found: list[Block], data: st.DataObject
    ) -> None:
        left = st.frozensets(st.sampled_from(TOPICS))
        parcel = dataclasses.replace(
            parcel_of(found, frozenset()),
            blocks=tuple((block, data.draw(left)) for block in found),
        )
        made = list(arrow.batches(parcel, headers=True))
        assert rows_of(made) == expected(parcel)

    def test_a_sender_may_be_called_as_a_topic(self) -> None:
        first, second = batch_of([b"1"], "alice"), batch_of([b"2"], "bob")
        first.offset, second.offset = 0, 1
        first.sender, second.sender = b"bob", b"alice"
        block = encode_block([record_of(first), record_of(second)], 1, 0, 2)
        (made,) = arrow.batches(parcel_of([block], frozenset({"alice"})))
        assert made.to_pydict()["value"] == [b"1"]

    def test_a_run_of_several_topics_keeps_those_that_are_read(self) -> None:
        names = ("a", "b", "c")
        sent = [(names[number % 3], b"%d" % number) for number in range(7)]
        block = block_of([record_of(mixed_batch(sent, names, 0))], 3, 0, 7)
        (whole,) = arrow.batches(parcel_of([block], frozenset(names)))
        assert (
            list(zip(*[whole[name].to_pylist() for name in ("topic", "value")], strict=True))
            == sent
        )
        (some,) = arrow.batches(parcel_of([block], frozenset("ac"), start=1))
        assert some["offset"].to_pylist() == [2, 3, 5, 6]
        assert some["topic"].to_pylist() == ["c", "a", "c", "a"]

    def test_a_long_block_is_cut_into_batches(self) -> None:
        many = 2 * ROWS + 10
        batch = batch_of([b""] * many, sequence=5)
        batch.offset = 7
        block = encode_block([record_of(batch)], 3, 7, 7 + many)
        made = list(arrow.batches(parcel_of([block], frozenset("t"), start=9)))
        assert [one.num_rows for one in made] == [ROWS, ROWS, 8]
        assert [one["offset"][0].as_py() for one in made] == [9, 9 + ROWS, 9 + 2 * ROWS]
        ids = made[1]["message_id"]
        assert ids[3].as_py() == str(message_id(3, 5 + 2 + ROWS + 3))

    def test_nothing_is_no_batch(self) -> None:
        block = encode_block([], 3, 7, 9)
        assert list(arrow.batches(parcel_of([block], frozenset("t")))) == []
        assert list(arrow.batches(Parcel(5, 5, 0))) == []


class SchemaTests(SynchronousTestCase):
    """The columns"""

    def test_they_are_those_of_spark(self) -> None:
        names = ["topic", "partition", "offset", "timestamp", "protocol", "key", "value"]
        assert arrow.schema().names == [*names, "message_id"]
        assert arrow.schema(headers=True).names == [*names, "message_id", "headers"]
        assert str(arrow.SCHEMA.field("timestamp").type) == "timestamp[us, tz=UTC]"
