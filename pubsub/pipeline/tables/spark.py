"""DataFrames into tables and out of them. Data stays in Arrow batches from end to end.

A data source of its own, ``pubsub_table``: workers write the files and the driver makes them part
of the table, or the driver picks files and workers read them. No jar is needed.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyarrow.parquet import filters_to_expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.names import Batch
from pubsub.pipeline.tables.parquet import ParquetFiles
from pubsub.pipeline.tables.parts import File, Parts

Table: TypeAlias = Delta | ParquetFiles
Filter: TypeAlias = tuple[str, str, Any]

FORMAT = "pubsub_table"
KINDS: dict[str, type[Delta] | type[ParquetFiles]] = {"delta": Delta, "parquet": ParquetFiles}
_QUERY_ID = "sql.streaming.queryId"


def query_id(spark: SparkSession) -> str:
    """The id of the streaming query whose batch is being handled; it outlives restarts."""
    found = spark.sparkContext.getLocalProperty(_QUERY_ID)
    assert found, "only within foreachBatch"
    return str(found)


@dataclass(frozen=True, slots=True)
class Target:
    """A table to write to: a directory, the columns that make a partition, delta or parquet.

    Raises ConfigurationError if the directory has another content. Jobs make their target first,
    so that nothing is written there, not even a checkpoint.
    """

    path: str
    by: tuple[str, ...] = ()
    kind: str = "delta"

    def __post_init__(self) -> None:
        KINDS[self.kind].admit(self.path)

    def table(self, schema: pa.Schema) -> Table:
        """The table, for rows of ``schema``."""
        return KINDS[self.kind](self.path, schema, self.by)

    def parts(self, batch: Batch) -> Parts:
        """What writes the files of ``batch`` for it; the table has to be prepared."""
        kind = KINDS[self.kind]
        return Parts(self.path, self.by, kind.keeps_partition_columns, kind.staging, batch=batch)


def arrow_columns(schema: StructType) -> pa.Schema:
    """The columns of a table of rows of ``schema``."""
    return to_arrow_schema(schema, timezone="UTC")


def save(df: DataFrame, target: Target, query: str, batch: int) -> None:
    """Write ``df``, which is batch number ``batch`` of ``query``, to ``target``, once."""
    df.sparkSession.dataSource.register(TableSource)
    options = {"by": json.dumps(target.by), "kind": target.kind, "query": query}
    writer = df.write.format(FORMAT).mode("append").options(**options)
    writer.option("batch", str(batch)).save(os.path.abspath(target.path))


def append(target: Target, rows: pa.Table, query: str, batch: int) -> bool:
    """As ``save``, for rows that are in this process already; False if they are there already."""
    table = target.table(rows.schema)
    table.prepare()
    parts = target.parts(Batch(query, batch))
    for part in rows.combine_chunks().to_batches():
        parts.add(part)
    return table.commit(parts.finish(), query, batch)


def read(
    spark: SparkSession,
    path: str,
    columns: Sequence[str] | None = None,
    filters: Sequence[Filter] = (),
    version: int | None = None,
) -> DataFrame:
    """The Delta table at ``path`` as a DataFrame.

    ``filters`` such as ``("topic", "=", "orders")`` hold all together; files that cannot have such
    rows are not opened. Raises ConfigurationError if no table is there.
    """
    table = open_delta(path, version)
    have = pa.schema(table.schema().to_arrow())
    schema = pa.schema([have.field(name) for name in columns or have.names])
    spark.dataSource.register(TableSource)
    options = {
        "filters": pickle.dumps(list(filters)).hex(),
        "version": str(table.version()),
    }
    reader = spark.read.format(FORMAT).schema(from_arrow_schema(schema)).options(**options)
    return reader.load(os.path.abspath(path))


def open_delta(path: str, version: int | None = None) -> DeltaTable:
    """The table at ``path``. Raises ConfigurationError if there is none."""
    try:
        return DeltaTable(path, version)
    except TableNotFoundError:
        raise ConfigurationError(f"{path}: no Delta table is there") from None
    except DeltaError as error:
        raise ConfigurationError(f"{path}: {error}") from None


class TableSource(DataSource):
    """``spark.read.format("pubsub_table")`` and ``df.write``: see ``read`` and ``save``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ConfigurationError("tables are appended to, not overwritten")
        options = self.options
        target = Target(options["path"], tuple(json.loads(options["by"])), options["kind"])
        columns = arrow_columns(schema)
        target.table(columns).prepare()
        return _Writer(target, columns, Batch(options["query"], int(options["batch"])))

    def reader(self, schema: StructType) -> DataSourceReader:
        filters = pickle.loads(bytes.fromhex(self.options["filters"]))
        names = list(schema.names)
        return _Reader(self.options["path"], names, filters, int(self.options["version"]))


@dataclass(frozen=True, slots=True)
class _Written(WriterCommitMessage):
    files: list[File]


class _Writer(DataSourceArrowWriter):
    """Pickled and sent to the workers, and used by the driver to commit."""

    def __init__(self, target: Target, schema: pa.Schema, batch: Batch) -> None:
        self._target = target
        self._schema = schema
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        parts = self._target.parts(self._batch)
        for batch in iterator:
            parts.add(batch)
        return _Written(parts.finish())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        table = self._target.table(self._schema)
        table.commit(_files(messages), self._batch.query, self._batch.number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        table = self._target.table(self._schema)
        table.discard(_files(messages), self._batch.query)


def _files(messages: list[WriterCommitMessage | None]) -> list[File]:
    return [file for message in messages if isinstance(message, _Written) for file in message.files]


@dataclass(frozen=True, slots=True)
class _Fragment(InputPartition):
    """A file with what is known of it, its partition's values above all, pickled."""

    value: bytes


class _Reader(DataSourceReader):
    def __init__(self, path: str, names: list[str], filters: list[Filter], version: int) -> None:
        self._path = path
        self._names = names
        self._version = version
        self._filter: pc.Expression | None = filters_to_expression(filters) if filters else None
        files = SubTreeFileSystem(path, LocalFileSystem())
        data = DeltaTable(path, version).to_pyarrow_dataset(filesystem=files)
        self._schema: pa.Schema = data.schema
        self._fragments = list(data.get_fragments(filter=self._filter))

    def partitions(self) -> Sequence[InputPartition]:
        return [_Fragment(pickle.dumps(each)) for each in self._fragments]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        wanted = pa.schema([self._schema.field(name) for name in self._names])
        scan = pickle.loads(partition.value).to_batches(
            schema=self._schema, columns=self._names, filter=self._filter
        )
        for batch in scan:
            yield batch.cast(wanted)
