"""Arrow batches to Parquet files, one partition a file. Runs in Spark's workers.

No loop here goes over rows: a batch is put in the order of its partitions by one sort of small
integers, and cut where they change.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pubsub.pipeline.tables.names import Batch, directory

HELD = 192 * 1024 * 1024
"""Bytes of Arrow data that a task keeps until it writes the largest partition of them."""
_ROW_GROUP = 1_000_000
# Ids count up within a run, so that each shares most of its text with the one before.
_PREFIXED = "message_id"
_COUNTING = ("offset", "timestamp")
_REPEATING = ("protocol", "key", "topic", "event", "listener", "client", "session", "reason")

Values = tuple[str, ...]
"""The values of a partition's columns, as text, in their order."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that was written: ``path`` within the table, ``size`` in bytes.

    ``low`` and ``high`` are the least and greatest values of the columns that have an order,
    ``nulls`` how many rows have none.
    """

    path: str
    size: int
    rows: int
    values: Values
    low: Mapping[str, int | str]
    high: Mapping[str, int | str]
    nulls: Mapping[str, int]


def places(files: Sequence[File]) -> set[str]:
    """The names in a table's own directory that ``files`` are at or below."""
    return {file.path.partition("/")[0] for file in files}


class Parts:
    """Sorts batches into partitions and writes their files below ``root``.

    ``by`` are the columns that make a partition; ``keep`` says whether the files hold them too.
    Files appear under their final names, under a directory ``staging`` if one is given. The names
    say which ``batch`` they are of; without one nothing ever removes them as leftovers.
    """

    def __init__(
        self,
        root: str,
        by: Sequence[str],
        keep: bool = False,
        staging: str = "",
        held: int = HELD,
        batch: Batch | None = None,
    ) -> None:
        self._root = root
        self._by = list(by)
        self._batch = batch
        self._keep = keep
        self._staging = staging
        self._limit = held
        self._waiting: dict[Values, list[pa.RecordBatch]] = {}
        self._bytes: dict[Values, int] = {}
        self._held = 0
        self._files: list[File] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch; it is written by and by."""
        # All partitions of a batch share its memory: what a slice holds is counted by its rows.
        width = batch.nbytes / max(batch.num_rows, 1)
        for values, part in self._split(batch):
            self._waiting.setdefault(values, []).append(part)
            size = int(part.num_rows * width)
            self._bytes[values] = self._bytes.get(values, 0) + size
            self._held += size
        while self._held > self._limit:
            self._write(max(self._bytes, key=self._bytes.__getitem__))

    def finish(self) -> list[File]:
        """Write the rest; all files."""
        for values in list(self._waiting):
            self._write(values)
        return self._files

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        codes, columns = self._codes(batch)
        if codes is None:
            yield self._values(columns, 0), self._kept(batch)
            return
        order = pc.sort_indices(codes)
        batch = batch.take(order)
        start = 0
        for run in pc.value_counts(codes.take(order)).to_pylist():
            length = run["counts"]
            row = order[start].as_py()
            yield self._values(columns, row), self._kept(batch.slice(start, length))
            start += length

    def _codes(self, batch: pa.RecordBatch) -> tuple[pa.Array | None, list[pa.DictionaryArray]]:
        """A number for each row's partition, None if there is one only; the partition columns."""
        columns = [batch.column(name).dictionary_encode("encode") for name in self._by]
        codes = None
        for column in columns:
            size = len(column.dictionary)
            if size > 1:
                own = column.indices.cast(pa.int64())
                codes = own if codes is None else pc.add(pc.multiply(codes, size), own)
        return codes, columns

    def _values(self, columns: list[pa.DictionaryArray], row: int) -> Values:
        return tuple(str(column[row].as_py()) for column in columns)

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self._keep else batch.drop_columns(self._by)

    def _write(self, values: Values) -> None:
        batches = self._waiting.pop(values)
        self._held -= self._bytes.pop(values)
        path = self._path(directory(values))
        target = os.path.join(self._root, self._staging, path)
        self._files.append(write_file(target, path, values, pa.Table.from_batches(batches)))

    def _path(self, place: str) -> str:
        if self._batch is not None:
            return self._batch.file(place)
        return f"{place}/{uuid.uuid4().hex}.parquet".lstrip("/")


def write_file(target: str, path: str, values: Values, table: pa.Table) -> File:
    """Write ``table`` to the file ``target``, synced to the disk; ``path`` is its name."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    names = table.column_names
    with open(target, "xb") as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            compression_level=1,
            row_group_size=_ROW_GROUP,
            use_dictionary=[name for name in _REPEATING if name in names],
            column_encoding=_encodings(table.schema),
            write_statistics=[name for name in names if _ordered(table.schema.field(name).type)],
        )
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    low, high, nulls = statistics(table)
    return File(path, size, table.num_rows, values, low, high, nulls)


def _encodings(schema: pa.Schema) -> dict[str, str]:
    chosen = {name: "DELTA_BINARY_PACKED" for name in _COUNTING if name in schema.names}
    if _PREFIXED in schema.names and pa.types.is_string(schema.field(_PREFIXED).type):
        chosen[_PREFIXED] = "DELTA_BYTE_ARRAY"
    return chosen


def _ordered(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_string)
    return any(test(kind) for test in tests)


def statistics(
    table: pa.Table,
) -> tuple[dict[str, int | str], dict[str, int | str], dict[str, int]]:
    """Least and greatest values by column, and how many nulls, as a Delta log has them.

    Of integers and timestamps only: text would repeat what clients wrote in the log.
    """
    low: dict[str, int | str] = {}
    high: dict[str, int | str] = {}
    nulls: dict[str, int] = {}
    for field in table.schema:
        if not pa.types.is_integer(field.type) and not pa.types.is_timestamp(field.type):
            continue
        column = table.column(field.name)
        nulls[field.name] = column.null_count
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            low[field.name] = _plain(found["min"], up=False)
            high[field.name] = _plain(found["max"], up=True)
    return low, high, nulls


def _plain(value: Any, up: bool) -> int | str:
    """A value in JSON. Times have milliseconds there; one cut off is rounded outwards."""
    if not isinstance(value, datetime):
        return int(value)
    moment = value.astimezone(UTC)
    if up and moment.microsecond % 1000:
        moment += timedelta(milliseconds=1)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"
