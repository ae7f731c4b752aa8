"""The slices and pieces of a replay: ranges of an archive in order, bounded by rows and bytes.

Spark sorts one slice at a time, and the driver holds it. A piece of a slice is one commit at the
broker. Slices and pieces follow from the archive and the limits alone, so that a replay that
continues numbers its pieces as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pubsub.pipeline.tables.partitions import LONG_TOPIC
from pubsub.pipeline.tables.spark import Filter

SLICE_MESSAGES = 500_000
SLICE_BYTES = 128 * 1024 * 1024
# Widths of the ranges in which messages are counted: offsets, or microseconds. A range that is too
# large for a slice is counted again by the next width.
_OFFSET_WIDTHS = (10_000, 100, 1)
_TIME_WIDTHS = (1_000_000, 10_000, 100, 1)
_MESSAGE_COLUMNS = ("topic", "value", "key", "headers")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Slice:
    """Messages with an offset, or a time in microseconds, from ``start`` to before ``stop``."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """The order of the messages of an archive: by offset with one broker, else by time.

    Offsets order the history of one broker, even if its clock was set back. Between brokers time is
    the only order.
    """

    single_broker: bool

    @property
    def _key(self) -> Column:
        return F.col("offset") if self.single_broker else F.unix_micros("timestamp")

    @property
    def _widths(self) -> tuple[int, ...]:
        return _OFFSET_WIDTHS if self.single_broker else _TIME_WIDTHS

    def slices(
        self,
        messages: DataFrame,
        most_messages: int = SLICE_MESSAGES,
        most_bytes: int | None = SLICE_BYTES,
    ) -> list[Slice]:
        """Return ranges, in order, of about ``most_messages`` and ``most_bytes``, or of one key.

        Without ``most_bytes`` only messages count, and no range is divided below the first width.
        """
        found: list[Slice] = []
        rows = nbytes = 0
        for slice, more_rows, more_bytes in self._counted(messages, most_bytes, self._widths):
            too_many = rows + more_rows > most_messages
            too_large = most_bytes is not None and nbytes + more_bytes > most_bytes
            if not found or too_many or too_large:
                found.append(slice)
                rows = nbytes = 0
            else:
                found[-1] = Slice(found[-1].start, slice.stop)
            rows += more_rows
            nbytes += more_bytes
        return found

    def _counted(
        self, messages: DataFrame, most_bytes: int | None, widths: Sequence[int]
    ) -> list[tuple[Slice, int, int]]:
        """Return the ranges of the first width that have messages, with their rows and bytes.

        A range of more than ``most_bytes`` is replaced by its ranges of the next width.
        """
        width, *narrower = widths
        number = F.floor(self._key / width)
        nbytes = F.lit(0) if most_bytes is None else message_bytes(messages.columns)
        counts = messages.groupBy(number.alias("number")).agg(
            F.count("*").alias("rows"), F.sum(nbytes).alias("nbytes")
        )
        rows = counts.orderBy("number").collect()
        large = [
            row["number"] for row in rows if most_bytes is not None and row["nbytes"] > most_bytes
        ]
        divided: dict[int, list[tuple[Slice, int, int]]] = {}
        if large and narrower:
            for each in self._counted(messages.where(number.isin(large)), most_bytes, narrower):
                divided.setdefault(each[0].start // width, []).append(each)
        found: list[tuple[Slice, int, int]] = []
        for row in rows:
            start = row["number"] * width
            whole = (Slice(start, start + width), row["rows"], row["nbytes"])
            found.extend(divided.get(row["number"], [whole]))
        return found

    def sorted_messages(self, messages: DataFrame, slice: Slice, prefix: str) -> DataFrame:
        """Return the messages of a slice in order, with the columns to publish."""
        key = self._key
        order = ["offset"] if self.single_broker else ["timestamp", "partition", "offset"]
        chosen = messages.where((key >= slice.start) & (key < slice.stop)).orderBy(*order)
        names = [name for name in _MESSAGE_COLUMNS if name in messages.columns]
        topic = F.col("topic")
        if LONG_TOPIC in messages.columns:
            topic = F.coalesce(LONG_TOPIC, topic)
        return chosen.withColumn("topic", F.concat(F.lit(prefix), topic)).select(*names)

    def filters(self, slice: Slice) -> list[Filter]:
        """Return filters that skip files without a row of the slice."""
        if self.single_broker:
            return [("offset", ">=", slice.start), ("offset", "<", slice.stop)]
        low, high = (_EPOCH + timedelta(microseconds=at) for at in (slice.start, slice.stop))
        return [("timestamp", ">=", low), ("timestamp", "<", high)]


def message_bytes(columns: Sequence[str]) -> Column:
    """Return the bytes of a message's topic, value, key and headers, without nulls."""
    lengths = [
        F.coalesce(F.octet_length(name), F.lit(0))
        for name in ("topic", "value", "key", LONG_TOPIC)
        if name in columns
    ]
    if "headers" in columns:
        text = "aggregate(headers, 0, (n, h) -> n + octet_length(h.key) + octet_length(h.value))"
        lengths.append(F.coalesce(F.expr(text), F.lit(0)))
    total = F.lit(0).cast("bigint")
    for length in lengths:
        total = total + length
    return total


def pieces(
    table: pa.Table, most_messages: int, most_bytes: int | None
) -> Iterator[list[pa.RecordBatch]]:
    """Divide ``table`` into pieces of up to ``most_messages`` rows and ``most_bytes``.

    A row that is larger is a piece of its own.
    """
    start = 0
    ends = None if most_bytes is None else _ends(table)
    while start < table.num_rows:
        stop = min(start + most_messages, table.num_rows)
        if ends is not None and most_bytes is not None:
            before = ends[start - 1].as_py() if start else 0
            stop = max(min(stop, _count_up_to(ends, before + most_bytes)), start + 1)
        yield table.slice(start, stop - start).to_batches()
        start = stop


def _ends(table: pa.Table) -> Any:
    """Return, for each row, the bytes up to its end."""
    total = pa.repeat(pa.scalar(_ROW_BYTES, pa.int64()), table.num_rows)
    for name in ("topic", "value", "key"):
        if name in table.column_names:
            length = pc.fill_null(pc.binary_length(table[name]), 0)
            total = pc.add(total, length.cast(pa.int64()).combine_chunks())
    if "headers" in table.column_names:
        total = pc.add(total, _header_bytes(table["headers"].combine_chunks()))
    return pc.cumulative_sum(total)


# The size of a row beside its bytes: the ends of its columns.
_ROW_BYTES = 16


def _header_bytes(headers: Any) -> Any:
    """Return the bytes of the headers of each row."""
    entries = headers.flatten()
    parts = [pc.fill_null(pc.binary_length(entries.field(n)), 0) for n in range(2)]
    ends = pc.cumulative_sum(pc.add(*parts).cast(pa.int64()))
    ends = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    counts = pc.fill_null(pc.list_value_length(headers), 0).cast(pa.int64())
    stops = pc.cumulative_sum(counts)
    starts = pc.subtract(stops, counts)
    width = pc.subtract(ends.take(stops), ends.take(starts))
    return pc.add(width, pc.multiply(counts, _ROW_BYTES))


def _count_up_to(ends: Any, limit: int) -> int:
    """Return how many of the increasing ``ends`` are within ``limit``."""
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        if ends[middle].as_py() <= limit:
            low = middle + 1
        else:
            high = middle
    return low
