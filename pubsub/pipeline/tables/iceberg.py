"""Iceberg tables by the package ``pyiceberg``: one snapshot for each batch."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, IdentityTransform

from pubsub.pipeline.tables.file_names import (
    BatchId,
    is_merge_of,
    is_own,
    new_merge_file,
    old_files,
    parse_batch_id,
    readable_directory,
)
from pubsub.pipeline.tables.files import WrittenFile, write_file
from pubsub.pipeline.tables.iceberg_catalog import IcebergName, catalog_errors
from pubsub.pipeline.tables.iceberg_files import (
    IcebergFiles,
    IcebergWriter,
    data_file,
    has_deleted_rows,
    have_same_columns,
)
from pubsub.pipeline.tables.iceberg_layout import check_iceberg_layout
from pubsub.pipeline.tables.location import StorageError
from pubsub.pipeline.tables.merging import FULL_FILE_BYTES, MergeFailures, merge_groups
from pubsub.pipeline.tables.partitions import Values

_BATCH_PROPERTY = "pubsub-batch."
_KEPT = timedelta(days=7)
_COMMIT_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """An Iceberg table to write to. Raises ConfigurationError and StorageError.

    ``files`` are set in the copy that workers get: they do not open the catalog.
    """

    name: IcebergName
    partition_by: tuple[str, ...]
    files: IcebergFiles | None = None
    kind: str = "iceberg"

    def table(self, schema: pa.Schema) -> Iceberg:
        """Return the table for rows of ``schema``."""
        return Iceberg(self.name, schema, self.partition_by)

    def running(self) -> IcebergTarget:
        """Return the target for a job that has begun; see IcebergName."""
        return replace(self, name=self.name.running())

    def prepared(self) -> IcebergTarget:
        """Return the target for workers. The table must exist."""
        files = IcebergFiles.of(self.table(pa.schema([])).open())
        return replace(self, files=files)

    def writer(self, batch: BatchId) -> IcebergWriter:
        """Return a writer for the files of ``batch``."""
        assert self.files is not None
        return self.files.writer(batch, self.partition_by)


class Iceberg:
    """The Iceberg table ``name``, with partitions by topic and by the day of ``timestamp``."""

    def __init__(self, name: IcebergName, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        self.name = name
        self.schema = schema
        self.partition_by = tuple(partition_by)
        self._catalog = name.open()

    def open(self) -> Table:
        """Return the newest version of the table, which must exist."""
        table = self.name.call(lambda: self._catalog.load_table(self.name.identifier))
        # By its retries pyiceberg would commit a batch that another writer committed meanwhile.
        # This changes only the copy of the properties in memory.
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        return table

    def create_if_missing(self) -> None:
        """Create the table and its namespace unless they exist.

        Raises ConfigurationError if there is another table.
        """
        self.name.call(self._create)
        check_iceberg_layout(self.name, self.open(), self.schema, self.partition_by)

    def _create(self) -> None:
        if self._catalog.table_exists(self.name.identifier):
            return
        schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(self.schema))
        with suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(self.name.namespace)
        with suppress(TableAlreadyExistsError):
            self._catalog.create_table(
                self.name.identifier, schema, partition_spec=self._spec(schema)
            )

    def _spec(self, schema: Schema) -> PartitionSpec:
        """Return the partitions. The day is that of ``timestamp``, for filters of that column."""
        fields = []
        for number, column in enumerate(self.partition_by, 1000):
            source = "timestamp" if column == "day" else column
            fields.append(
                PartitionField(
                    schema.find_field(source).field_id,
                    number,
                    DayTransform() if column == "day" else IdentityTransform(),
                    "timestamp_day" if column == "day" else column,
                )
            )
        return PartitionSpec(*fields)

    def commit(self, files: Sequence[WrittenFile], query: str, batch: int) -> bool:
        """Add ``files``, written by batch number ``batch`` of ``query``, in one snapshot.

        Returns False if the table has that batch or a later one of the query. Then the files are
        removed, and the table does not change.
        """
        for _ in range(_COMMIT_ATTEMPTS):
            with suppress(CommitFailedException):
                # Also after a failure, as the commit can have taken effect.
                return self.name.call(lambda: self._commit_if_new(files, query, batch))
        raise StorageError(f"{self.name}: other writers keep changing the table; run the job again")

    def _commit_if_new(self, files: Sequence[WrittenFile], query: str, batch: int) -> bool:
        table = self.open()
        if last_iceberg_batch(table, query) >= batch:
            self.discard(files, query)
            return False
        self._append(table, files, query, batch)
        return True

    def last_batch(self, query: str) -> int:
        """Return the number of the last batch of ``query`` in the table, or -1."""
        return last_iceberg_batch(self.open(), query)

    def batch_rows(self, query: str, batch: int) -> int | None:
        """Return the rows of a batch whose snapshot has not expired, or None."""
        wanted = {"pubsub-query": query, "pubsub-batch": str(batch)}
        for snapshot in self.open().metadata.snapshots:
            found = snapshot.summary.additional_properties if snapshot.summary else {}
            if wanted.items() <= found.items():
                return int(found.get("added-records", 0))
        return None

    @property
    def path(self) -> str:
        """The name of the table, as errors have it."""
        return str(self.name)

    def _append(self, table: Table, files: Sequence[WrittenFile], query: str, batch: int) -> None:
        url = IcebergFiles.of(table).url
        properties = {"pubsub-query": query, "pubsub-batch": str(batch)}
        with table.transaction() as transaction:
            # Snapshots expire, and the number of the batch must not.
            transaction.set_properties({f"{_BATCH_PROPERTY}{query}": str(batch)})
            with transaction.update_snapshot(properties).fast_append() as append:
                for file in files:
                    append.append_data_file(data_file(table, url, file, self.partition_by))

    def discard(self, files: Sequence[WrittenFile], query: str) -> None:
        """Remove ``files`` of ``query`` after their commit was refused or failed.

        Files that a snapshot lists stay, as a commit can fail after it took effect.
        """
        table = self.open()
        listed = {file.path for file in _listed(table, table.metadata.snapshots)}
        storage = IcebergFiles.of(table).storage()
        for written in files:
            if written.path not in listed:
                storage.remove(written.path)

    def compact(self) -> int:
        """Merge small files, each group in one snapshot; return the number of files replaced.

        The order of the offsets is kept. Snapshots of more than a week are expired, and then the
        files of this package that none lists are removed.
        """
        with catalog_errors(self.name):
            if not self._catalog.table_exists(self.name.identifier):
                return 0
            table = self.open()
            replaced, failures = 0, MergeFailures()
            for group in _groups(table):
                with failures.noted():
                    replaced += self._merge(group)
            self._clean()
            failures.raise_first()
        return replaced

    def _merge(self, group: list[_Listed]) -> int:
        """Merge the files ``group``; return their number, or 0 if another writer replaced them."""
        table = self.open()
        files = IcebergFiles.of(table)
        storage = files.storage()
        parts = [storage.read(file.path) for file in group]
        if not have_same_columns(parts):
            return 0
        rows = pa.concat_tables(parts, promote_options="default")
        values = group[0].values
        directory = readable_directory(self.partition_by, values)
        path = new_merge_file(directory, group[0].path)
        merged = write_file(storage, path, values, rows)
        for _ in range(_COMMIT_ATTEMPTS):
            table = self.open()
            if has_deleted_rows(table):
                return 0
            with suppress(CommitFailedException):
                try:
                    self._replace(
                        table, group, data_file(table, files.url, merged, self.partition_by)
                    )
                except ValidationException:
                    # Another writer has replaced them.
                    return 0
                return len(group)
        return 0

    @staticmethod
    def _replace(table: Table, old: list[_Listed], new: DataFile) -> None:
        with (
            table.transaction() as transaction,
            transaction.update_snapshot({"pubsub-merged": str(len(old))}).overwrite() as overwrite,
        ):
            for file in old:
                overwrite.delete_data_file(file.entry)
            overwrite.append_data_file(new)

    def _clean(self) -> None:
        expired = datetime.now(UTC) - _KEPT
        with suppress(CommitFailedException):
            self.open().maintenance.expire_snapshots().older_than(expired).commit()
        table = self.open()
        storage = IcebergFiles.of(table).storage()
        for path in self._leftovers(table):
            storage.remove(path)

    def _leftovers(self, table: Table) -> list[str]:
        """Return old files of this package that no snapshot lists, nor can list in the future.

        Age alone is not enough, as clocks can be wrong. A batch that is finished is not committed
        again, and a merge is not if its first source is replaced.
        """
        listed = {file.path for file in _listed(table, table.metadata.snapshots)}
        current = {file.path for file in _current(table)}

        def is_leftover(path: str) -> bool:
            batch = parse_batch_id(path)
            if batch is None:
                return is_own(path) and not is_merge_of(path, current)
            return last_iceberg_batch(table, batch.query) >= batch.number

        storage = IcebergFiles.of(table).storage()
        before = time.time() - _KEPT.total_seconds()
        found = old_files(storage, len(self.partition_by), before)
        return [path for path in found if path not in listed and is_leftover(path)]


def last_iceberg_batch(table: Table, query: str) -> int:
    """Return the number of the last batch of ``query`` in the table, or -1."""
    return int(table.metadata.properties.get(f"{_BATCH_PROPERTY}{query}", -1))


@dataclass(frozen=True, slots=True)
class _Listed:
    """A file that a snapshot lists: its path within the data files, and its partition."""

    path: str
    values: Values
    entry: DataFile


def _size_of(file: _Listed) -> int:
    return file.entry.file_size_in_bytes


def _current(table: Table) -> Iterator[_Listed]:
    snapshot = table.current_snapshot()
    return _listed(table, [] if snapshot is None else [snapshot])


def _listed(table: Table, snapshots: Sequence[Snapshot]) -> Iterator[_Listed]:
    """Yield the files of ``snapshots``, each once for each manifest that has it."""
    root = f"{IcebergFiles.of(table).url}/"
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in snapshots
        for manifest in snapshot.manifests(table.io)
    }
    for manifest in manifests.values():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            yield _Listed(file.file_path.removeprefix(root), _values(table, file), file)


def _values(table: Table, file: DataFile) -> Values:
    found: list[str | None] = []
    for number, field in enumerate(table.spec().fields):
        value = file.partition[number]
        is_day = isinstance(field.transform, DayTransform) and isinstance(value, int)
        if is_day:
            value = date(1970, 1, 1) + timedelta(days=value)
        found.append(None if value is None else str(value))
    return tuple(found)


def _groups(table: Table) -> Iterator[list[_Listed]]:
    """Yield groups of adjacent files of a partition that fill a file, or have enough files.

    Files of others are not merged. Nor is a table with deleted rows, as these are in other files.
    """
    if has_deleted_rows(table):
        return
    found: defaultdict[Values, list[_Listed]] = defaultdict(list)
    for file in _current(table):
        if file.entry.file_size_in_bytes < FULL_FILE_BYTES and is_own(file.path):
            found[file.values].append(file)
    offset = table.schema().find_field("offset").field_id
    for files in found.values():
        files.sort(key=lambda file: int.from_bytes(file.entry.lower_bounds[offset], "little"))
        yield from merge_groups(files, _size_of)
