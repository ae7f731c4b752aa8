"""The data files of an Iceberg table: workers write them without the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
from pyarrow.fs import SubTreeFileSystem
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from pubsub.pipeline.tables.file_names import BatchId, readable_directory
from pubsub.pipeline.tables.files import PartitionWriter, WrittenFile
from pubsub.pipeline.tables.location import Location, StorageOptions
from pubsub.pipeline.tables.storage import Storage, disk_storage, filesystem_storage

_ID = b"PARQUET:field_id"
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class IcebergFiles:
    """The directory of the data files of a table, with the columns of its schema. Pickled.

    ``properties`` are those of pyiceberg's files, and can be credentials.
    """

    url: str
    properties: StorageOptions = field(repr=False)
    columns: bytes

    @classmethod
    def of(cls, table: Table) -> IcebergFiles:
        """Return the files of ``table``."""
        columns = schema_to_pyarrow(table.schema()).serialize().to_pybytes()
        url = f"{table.location().rstrip('/')}/data"
        return cls(url, tuple((k, str(v)) for k, v in table.io.properties.items()), columns)

    def storage(self) -> Storage:
        """Return the files."""
        scheme, host, path = PyArrowFileIO.parse_location(self.url)
        if scheme == "file":
            return disk_storage(path)
        io = PyArrowFileIO(dict(self.properties))
        files = SubTreeFileSystem(path, io.fs_by_scheme(scheme, host))
        return filesystem_storage(files, Location(self.url))

    def writer(self, batch: BatchId, partition_by: tuple[str, ...]) -> IcebergWriter:
        """Return a writer for the files of ``batch``."""
        parts = PartitionWriter(
            self.storage(), partition_by, True, batch=batch, directory_of=readable_directory
        )
        return IcebergWriter(parts, pa.ipc.read_schema(pa.py_buffer(self.columns)))


class IcebergWriter:
    """Writes batches with the ids of the columns, by which readers find these in files.

    The table may have further columns.
    """

    def __init__(self, parts: PartitionWriter, schema: pa.Schema) -> None:
        self._parts = parts
        self._schema = schema

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; see PartitionWriter."""
        columns = pa.schema([self._schema.field(name) for name in batch.schema.names])
        self._parts.add(batch.cast(columns))

    def finish(self) -> list[WrittenFile]:
        """Write the remaining rows and return all files."""
        return self._parts.finish()


def have_same_columns(parts: Sequence[pa.Table]) -> bool:
    """Return whether columns of one name, in the files ``parts``, are one column of the table.

    They are not if the column was removed and another one was added under its name.
    """
    ids = {(field.name, (field.metadata or {}).get(_ID)) for part in parts for field in part.schema}
    return len(ids) == len({name for name, _ in ids})


def has_deleted_rows(table: Table) -> bool:
    """Return whether other files list deleted rows, which are still in the data files."""
    snapshot = table.current_snapshot()
    return snapshot is not None and any(
        manifest.content == ManifestContent.DELETES
        and (manifest.has_added_files() or manifest.has_existing_files())
        for manifest in snapshot.manifests(table.io)
    )


def data_file(table: Table, url: str, file: WrittenFile, partition_by: tuple[str, ...]) -> DataFile:
    """Return the entry of ``file``, below ``url``, for a manifest of ``table``."""
    schema = table.schema()
    values = dict(zip(partition_by, file.values, strict=True))
    low: dict[str, Any] = {**file.low, **values}
    high: dict[str, Any] = {**file.high, **values}
    found = DataFile.from_args(
        _table_format_version=table.format_version,
        content=DataFileContent.DATA,
        file_path=f"{url}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*(_partition_value(name, values[name]) for name in partition_by)),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        null_value_counts={
            schema.find_field(name).field_id: count for name, count in file.nulls.items()
        },
        lower_bounds=_bounds(schema, low),
        upper_bounds=_bounds(schema, high),
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    found.spec_id = table.spec().spec_id
    return found


def _partition_value(name: str, value: str | None) -> str | int | None:
    if name != "day" or value is None:
        return value
    return (date.fromisoformat(value) - _EPOCH_DAY).days


def _bounds(schema: Schema, values: dict[str, Any]) -> dict[int, bytes]:
    """Return bounds as manifests have them; those of texts are whole."""
    found = {}
    for name, value in values.items():
        column = schema.find_field(name)
        if value is not None:
            kind = cast(PrimitiveType, column.field_type)
            found[column.field_id] = to_bytes(kind, _bound(name, value))
    return found


def _bound(name: str, value: Any) -> Any:
    if name == "day":
        return _partition_value(name, value)
    if name == "timestamp":
        return (datetime.fromisoformat(value) - _EPOCH) // timedelta(microseconds=1)
    return value
