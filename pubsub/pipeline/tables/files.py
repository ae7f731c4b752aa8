"""Writes Arrow batches to Parquet files, each in one partition. Runs in Spark's workers.

No loop goes over rows: a batch is sliced where its partition changes. If that is often, one sort of
small integers orders it by partition first.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pubsub.pipeline.tables.file_names import BatchId
from pubsub.pipeline.tables.location import Location
from pubsub.pipeline.tables.partitions import Values, hive_directory, partition_text
from pubsub.pipeline.tables.storage import Storage, open_storage

MAX_HELD_BYTES = 192 * 1024 * 1024
"""Bytes of Arrow data above which a task writes its largest partition."""
# Rows that wait keep the batches they came in. If these have this many times the bytes that may be
# held, the rows are copied, and the batches freed.
_SHARED = 2
_ROW_GROUP = 1_000_000
# Above this mean number of rows of one partition in sequence, a batch is not sorted by partition.
_LONG_RUN = 64
# Ids increase within a run, so each shares a long prefix with the one before.
_PREFIXED_COLUMN = "message_id"
# Nothing can be rounded up to the next one.
_LAST_MILLISECOND = datetime(9999, 12, 31, 23, 59, 59, 999_000)
# Of each unit in a second.
_TICKS = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_COUNTING_COLUMNS = ("offset", "timestamp")
_REPEATING_COLUMNS = (
    "protocol",
    "key",
    "topic",
    "event",
    "listener",
    "client",
    "session",
    "reason",
)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was written: ``path`` within the table, ``size`` in bytes.

    ``low`` and ``high`` are the least and greatest values of the ordered columns, and ``nulls`` are
    their numbers of nulls.
    """

    path: str
    size: int
    rows: int
    values: Values
    low: Mapping[str, int | str]
    high: Mapping[str, int | str]
    nulls: Mapping[str, int]


def top_level_names(files: Sequence[WrittenFile]) -> set[str]:
    """Return the names in the directory of the table at or below which ``files`` are."""
    return {file.path.partition("/")[0] for file in files}


class PartitionWriter:
    """Divides batches among partitions and writes their files below ``root``.

    ``directory_of`` names the directory of a partition. ``partition_by`` are the partition columns,
    and with ``keep_columns`` the files contain them too. Files get their final names, in the
    directory ``staging`` if one is given. The names contain ``batch``; files without a batch are
    never removed as leftovers.
    """

    def __init__(
        self,
        root: str | Location | Storage,
        partition_by: Sequence[str],
        keep_columns: bool = False,
        staging: str = "",
        max_held: int = MAX_HELD_BYTES,
        batch: BatchId | None = None,
        directory_of: Callable[[Sequence[str], Values], str] = hive_directory,
    ) -> None:
        if isinstance(root, str | Location):
            root = open_storage(Location.of(root), staging)
        self._storage = root
        self._directory_of = directory_of
        self._partition_by = list(partition_by)
        self._batch = batch
        self._keep_columns = keep_columns
        self._max_held = max_held
        self._waiting: dict[Values, list[pa.RecordBatch]] = {}
        self._partition_bytes: dict[Values, int] = {}
        self._held = 0
        # Bytes of the batches that rows may share memory with.
        self._shared = 0
        self._files: list[WrittenFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch, and write partitions while too many bytes are held."""
        # An estimate, as the bytes of a slice take long to determine.
        width = batch.nbytes / max(batch.num_rows, 1)
        self._shared += batch.nbytes
        for values, rows in self._split(batch):
            self._waiting.setdefault(values, []).append(rows)
            size = int(rows.num_rows * width)
            self._partition_bytes[values] = self._partition_bytes.get(values, 0) + size
            self._held += size
        self._write_largest()
        if self._shared > _SHARED * self._max_held:
            self._copy()
            self._write_largest()

    def _write_largest(self) -> None:
        while self._held > self._max_held:
            self._write(max(self._partition_bytes, key=self._partition_bytes.__getitem__))

    def _copy(self) -> None:
        """Copy the rows that wait: a few of them keep the memory of whole batches."""
        for values, batches in self._waiting.items():
            # Alone, a batch would not be copied.
            rows = pa.Table.from_batches([*batches, batches[0].slice(0, 0)]).combine_chunks()
            self._waiting[values] = rows.to_batches()
            self._partition_bytes[values] = rows.nbytes
        self._held = self._shared = sum(self._partition_bytes.values())

    def finish(self) -> list[WrittenFile]:
        """Write the remaining rows and return all files."""
        for values in list(self._waiting):
            self._write(values)
        return self._files

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        codes, columns = self._codes(batch)
        if codes is None:
            yield self._values(columns, 0), self._file_columns(batch)
            return
        rows = self._file_columns(batch)
        ends = pc.run_end_encode(codes, pa.int32()).run_ends
        if len(ends) * _LONG_RUN > batch.num_rows:
            order = pc.sort_indices(codes)
            rows = rows.take(order)
            columns = [column.take(order) for column in columns]
            ends = pc.run_end_encode(codes.take(order), pa.int32()).run_ends
        start = 0
        for end in ends.to_pylist():
            yield self._values(columns, start), rows.slice(start, end - start)
            start = end

    def _codes(self, batch: pa.RecordBatch) -> tuple[pa.Array | None, list[pa.DictionaryArray]]:
        """Return a number for the partition of each row, and the partition columns.

        The numbers are None if all rows are in one partition.
        """
        columns = [batch.column(name).dictionary_encode("encode") for name in self._partition_by]
        codes = None
        for column in columns:
            size = len(column.dictionary)
            if size > 1:
                own = column.indices.cast(pa.int64())
                codes = own if codes is None else pc.add(pc.multiply(codes, size), own)
        return codes, columns

    def _values(self, columns: list[pa.DictionaryArray], row: int) -> Values:
        return tuple(partition_text(column[row].as_py()) for column in columns)

    def _file_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self._keep_columns else batch.drop_columns(self._partition_by)

    def _write(self, values: Values) -> None:
        batches = self._waiting.pop(values)
        self._held -= self._partition_bytes.pop(values)
        path = self._path(self._directory_of(self._partition_by, values))
        rows = pa.Table.from_batches(batches)
        self._files.append(write_file(self._storage, path, values, rows))

    def _path(self, directory: str) -> str:
        if self._batch is not None:
            return self._batch.new_file(directory)
        return f"{directory}/{uuid.uuid4().hex}.parquet".lstrip("/")


def write_file(storage: Storage, path: str, values: Values, table: pa.Table) -> WrittenFile:
    """Write ``table`` to the new file ``path``, which is durable on return."""
    names = table.column_names
    with storage.create(path) as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            compression_level=1,
            row_group_size=_ROW_GROUP,
            use_dictionary=[name for name in _REPEATING_COLUMNS if name in names],
            column_encoding=_encodings(table.schema),
            write_statistics=[name for name in names if _ordered(table.schema.field(name).type)],
        )
        size = file.tell()
    low, high, nulls = statistics(table)
    return WrittenFile(path, size, table.num_rows, values, low, high, nulls)


def _encodings(schema: pa.Schema) -> dict[str, str]:
    # Columns of these names can have other types in tables of the job derive.
    chosen = {
        name: "DELTA_BINARY_PACKED"
        for name in _COUNTING_COLUMNS
        if name in schema.names and has_statistics(schema.field(name).type)
    }
    if _PREFIXED_COLUMN in schema.names and pa.types.is_string(schema.field(_PREFIXED_COLUMN).type):
        chosen[_PREFIXED_COLUMN] = "DELTA_BYTE_ARRAY"
    return chosen


def _ordered(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_string)
    return any(test(kind) for test in tests)


def has_statistics(kind: pa.DataType) -> bool:
    """Return whether a Delta log has the least and greatest values of columns of this type."""
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def statistics(
    table: pa.Table,
) -> tuple[dict[str, int | str], dict[str, int | str], dict[str, int]]:
    """Return the minimum, maximum and number of nulls of each column, as a Delta log has them.

    Only for integers and timestamps: text would copy the data of clients into the log.
    """
    low: dict[str, int | str] = {}
    high: dict[str, int | str] = {}
    nulls: dict[str, int] = {}
    for field in table.schema:
        if not has_statistics(field.type):
            continue
        column = table.column(field.name)
        ends = pc.min_max(column)
        try:
            least, greatest = _json_value(ends["min"], False), _json_value(ends["max"], True)
        except OverflowError:
            # Readers take a number of nulls without the two for a column that has nulls alone.
            continue
        nulls[field.name] = column.null_count
        if least is not None and greatest is not None:
            low[field.name], high[field.name] = least, greatest
    return low, high, nulls


def _json_value(value: Any, up: bool) -> int | str | None:
    """Return a value for JSON. Times have milliseconds there and are rounded outwards.

    Those of a column without a time zone have none here either. Raises OverflowError for a time
    before the year 1 or after 9999.
    """
    if not value.is_valid or not pa.types.is_timestamp(value.type):
        number: int | None = value.as_py()
        return number
    ticks = _TICKS[value.type.unit]
    microseconds = (value.value * 1_000_000 + (ticks - 1 if up else 0)) // ticks
    time = datetime(1970, 1, 1) + timedelta(microseconds=microseconds)
    is_last = up and time > _LAST_MILLISECOND
    if up and time.microsecond % 1000 and not is_last:
        time += timedelta(milliseconds=1)
    text = time.isoformat(timespec="microseconds" if is_last else "milliseconds")
    return text if value.type.tz is None else f"{text}Z"
