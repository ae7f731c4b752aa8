"""The slices of a replay: ranges in order, bounded by messages and bytes; and its pieces."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pubsub.pipeline.jobs.replay_slices import ReplayOrder, Slice
from pubsub.pipeline.publishing.message_pieces import pieces
from tests.spark.messages import MESSAGES, frame, message


def test_messages_bound_a_slice(spark: SparkSession) -> None:
    rows = frame(spark, [message(n * 1000) for n in range(50)], MESSAGES)
    found = ReplayOrder(single_broker=True).slices(rows, most_messages=20)
    assert found == [Slice(0, 20_000), Slice(20_000, 40_000), Slice(40_000, 50_000)]


def test_bytes_bound_a_slice(spark: SparkSession) -> None:
    """A range of offsets is divided as far as it is needed, down to single messages."""
    sizes = {0: 10, 5: 10, 5000: 900, 5001: 900, 5002: 10, 12_000: 10}
    rows = [message(n, value=b"x" * size) for n, size in sizes.items()]
    order = ReplayOrder(single_broker=True)
    found = order.slices(frame(spark, rows, MESSAGES), most_bytes=500)
    assert [[n for n in sizes if each.start <= n < each.stop] for each in found] == [
        [0, 5],
        [5000],
        [5001],
        [5002, 12_000],
    ]


@pytest.mark.parametrize("single_broker", [True, False])
def test_slices_have_every_message_once_and_in_order(
    spark: SparkSession, single_broker: bool
) -> None:
    rows = frame(spark, [message(n, value=b"x" * (n % 7) * 100) for n in range(300)], MESSAGES)
    order = ReplayOrder(single_broker)
    found = order.slices(rows, most_messages=50, most_bytes=2000)
    assert len(found) > 6
    values = [
        row.value for each in found for row in order.sorted_messages(rows, each, "again/").collect()
    ]
    assert values == [row.value for row in rows.orderBy("offset").collect()]


def test_pieces_are_bounded_by_messages_and_bytes() -> None:
    sizes = [10, 10, 1000, 10, 10, 10]
    headers = pa.array(
        [None, [], [{"key": "k", "value": b"x" * 900}], None, [], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    table = pa.table({"topic": ["t"] * 6, "value": [b"x" * n for n in sizes], "headers": headers})
    assert _sizes(pieces(table, 2, None)) == [2, 2, 2]
    assert _sizes(pieces(table, 4, 100)) == [2, 1, 3]
    assert _sizes(pieces(table, 6, 2000)) == [3, 3]
    assert _sizes(pieces(table, 6, 3000)) == [6]
    assert _sizes(pieces(table.slice(0, 0), 6, 3000)) == []


def _sizes(found: object) -> list[int]:
    return [sum(batch.num_rows for batch in each) for each in found]  # type: ignore[attr-defined]
