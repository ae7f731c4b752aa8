"""Writes DataFrames to tables and reads them from tables. The data stays in Arrow batches.

The data source ``pubsub_table`` needs no jar: workers write files and the driver commits them, or
the driver selects files and workers read them.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
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
from pubsub.pipeline.tables.batch_order import commit_once
from pubsub.pipeline.tables.delta import Delta, open_delta
from pubsub.pipeline.tables.delta_layout import readable_dataset
from pubsub.pipeline.tables.file_names import BatchId
from pubsub.pipeline.tables.files import PartitionWriter, WrittenFile
from pubsub.pipeline.tables.location import (
    Location,
    StorageOptions,
    storage_errors,
    target_location,
)
from pubsub.pipeline.tables.parquet import ParquetFiles
from pubsub.pipeline.tables.storage import open_storage
from pubsub.pipeline.tables.valid_text import with_valid_text

WritableTable: TypeAlias = Delta | ParquetFiles
Filter: TypeAlias = tuple[str, str, Any]

FORMAT = "pubsub_table"
KINDS: dict[str, type[Delta] | type[ParquetFiles]] = {"delta": Delta, "parquet": ParquetFiles}
_QUERY_ID = "sql.streaming.queryId"


def query_id(spark: SparkSession) -> str:
    """Return the id of the streaming query whose batch is handled; restarts keep the id."""
    found = spark.sparkContext.getLocalProperty(_QUERY_ID)
    assert found, "query_id works only within foreachBatch"
    return str(found)


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table to write to: its path or location, its partition columns, and delta or parquet.

    Raises ConfigurationError if the directory has other contents. Jobs create their target first,
    so that nothing, not even a checkpoint, is written there before the check.
    """

    path: str | Location
    partition_by: tuple[str, ...] = ()
    kind: str = "delta"

    def __post_init__(self) -> None:
        KINDS[self.kind].check_directory(self.path)

    def running(self) -> TableTarget:
        """Return the target for a job that has begun."""
        return self

    def prepared(self) -> TableTarget:
        """Return the target for workers. The table must exist."""
        return self

    @property
    def location(self) -> Location:
        """The location of the table."""
        return Location.of(self.path)

    def table(self, schema: pa.Schema) -> WritableTable:
        """Return the table for rows of ``schema``."""
        return KINDS[self.kind](self.path, schema, self.partition_by)

    def writer(self, batch: BatchId) -> PartitionWriter:
        """Return a writer for the files of ``batch``. The table must exist."""
        kind = KINDS[self.kind]
        keep = kind.keeps_partition_columns
        return PartitionWriter(
            self.path,
            self.partition_by,
            keep,
            kind.staging,
            batch=batch,
            directory_of=kind.directory_of,
        )


def target_by_day(options: argparse.Namespace) -> TableTarget:
    """Return the table on the command line of a job whose rows have a ``day``.

    Raises ConfigurationError and StorageError.
    """
    return TableTarget(target_location(options), ("day",))


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return the columns of a table for rows of ``schema``."""
    return to_arrow_schema(schema, timezone="UTC")


def save(df: DataFrame, target: TableTarget, query: str, batch: int) -> None:
    """Write ``df``, the batch number ``batch`` of ``query``, to ``target``, once."""
    source = _table_source(target.location.options)
    df.sparkSession.dataSource.register(source)
    options = {"by": json.dumps(target.partition_by), "kind": target.kind, "query": query}
    writer = df.write.format(source.name()).mode("append").options(**options)
    writer.option("batch", str(batch)).save(target.location.url)


def batch_saver(target: TableTarget) -> Callable[[DataFrame, int, str], None]:
    """Return a function that saves a batch, given its number and query, to ``target``."""

    def save_batch(batch: DataFrame, number: int, query: str) -> None:
        save(batch, target, query, number)

    return save_batch


def append(target: TableTarget, rows: pa.Table, query: str, batch: int) -> bool:
    """Write rows in this process, once. Returns False if the table has the batch already."""
    table = target.table(rows.schema)
    table.create_if_missing()
    writer = target.writer(BatchId(query, batch))
    for each in rows.combine_chunks().to_batches():
        writer.add(each)
    return commit_once(table, writer.finish(), query, batch)


def read(
    spark: SparkSession,
    where: str | Location,
    columns: Sequence[str] | None = None,
    filters: Sequence[Filter] = (),
    version: int | None = None,
) -> DataFrame:
    """Return the Delta table at a path, URL or location as a DataFrame.

    All ``filters``, such as ``("topic", "=", "orders")``, must hold; files without such rows are
    not opened. Raises ConfigurationError if there is no table.
    """
    location = Location.of(where)
    table = open_delta(location, version)
    present = pa.schema(table.schema().to_arrow())
    schema = pa.schema([present.field(name) for name in columns or present.names])
    source = _table_source(location.options)
    spark.dataSource.register(source)
    options = {
        "filters": pickle.dumps(list(filters)).hex(),
        "version": str(table.version()),
    }
    reader = spark.read.format(source.name()).schema(from_arrow_schema(schema)).options(**options)
    return reader.load(location.url)


class TableSource(DataSource):
    """``spark.read.format("pubsub_table")`` and ``df.write``; see ``read`` and ``save``."""

    storage_options: StorageOptions = ()

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ConfigurationError("tables cannot be overwritten: use mode append")
        options = self.options
        location = Location.parse(options["path"], self.storage_options)
        target = TableTarget(location, tuple(json.loads(options["by"])), options["kind"])
        columns = arrow_columns(schema)
        target.table(columns).create_if_missing()
        return _TableWriter(target, columns, BatchId(options["query"], int(options["batch"])))

    def reader(self, schema: StructType) -> DataSourceReader:
        filters = pickle.loads(bytes.fromhex(self.options["filters"]))
        names = list(schema.names)
        location = Location.parse(self.options["path"], self.storage_options)
        return _TableReader(location, names, filters, int(self.options["version"]))


_sources: dict[StorageOptions, type[TableSource]] = {(): TableSource}


def _table_source(options: StorageOptions) -> type[TableSource]:
    """Return the format for tables with ``options`` of their object store.

    Spark shows all options of a query on its pages and in its logs. So those of
    a store, which can be credentials, are in the class, which is sent to the workers pickled.
    """
    if options not in _sources:
        name = f"{FORMAT}_{len(_sources)}"

        class StoredTableSource(TableSource):
            storage_options = options

            @classmethod
            def name(cls) -> str:
                return name

        _sources[options] = StoredTableSource
    return _sources[options]


@dataclass(frozen=True, slots=True)
class _WrittenFiles(WriterCommitMessage):
    files: list[WrittenFile]


class _TableWriter(DataSourceArrowWriter):
    """Pickled and sent to the workers; the driver uses it to commit."""

    def __init__(self, target: TableTarget, schema: pa.Schema, batch: BatchId) -> None:
        self._target = target
        self._schema = schema
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        writer = self._target.writer(self._batch)
        for batch in iterator:
            writer.add(with_valid_text(batch))
        return _WrittenFiles(writer.finish())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        table = self._target.table(self._schema)
        commit_once(table, _files(messages), self._batch.query, self._batch.number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        table = self._target.table(self._schema)
        table.discard(_files(messages), self._batch.query)


def _files(messages: list[WriterCommitMessage | None]) -> list[WrittenFile]:
    return [
        file for message in messages if isinstance(message, _WrittenFiles) for file in message.files
    ]


@dataclass(frozen=True, slots=True)
class _FileTask(InputPartition):
    """A file with its metadata, such as the values of its partition, pickled."""

    value: bytes


class _TableReader(DataSourceReader):
    def __init__(
        self, location: Location, names: list[str], filters: list[Filter], version: int
    ) -> None:
        self._location = location
        self._names = names
        self._filter: pc.Expression | None = filters_to_expression(filters) if filters else None
        files = open_storage(location).filesystem()
        with storage_errors(location):
            table = open_delta(location, version)
            data = readable_dataset(location, table, filesystem=files)
        self._schema: pa.Schema = data.schema
        self._fragments = list(data.get_fragments(filter=self._filter))

    def partitions(self) -> Sequence[InputPartition]:
        return [_FileTask(pickle.dumps(each)) for each in self._fragments]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            # Spark asks for one partition if there is none.
            return
        requested = pa.schema([self._schema.field(name) for name in self._names])
        with storage_errors(self._location):
            scan = pickle.loads(partition.value).to_batches(
                schema=self._schema, columns=self._names, filter=self._filter
            )
            for batch in scan:
                yield batch.cast(requested)
