"""The slices of a replay: ranges of an archive in order, bounded by rows and bytes.

Spark sorts one slice at a time, and the driver holds it. A piece of a slice is one commit at the
broker. Slices and pieces follow from the archive and the limits alone, so that a replay that
continues numbers its pieces as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

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
