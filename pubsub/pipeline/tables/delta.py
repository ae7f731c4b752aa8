"""Delta tables by the package ``deltalake``: no jar, and one transaction for each batch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.delta_directory import is_delta, load_table
from pubsub.pipeline.tables.delta_files import (
    batch_metadata,
    delta_batch_rows,
    has_deletion_vectors,
    last_delta_batch,
    listed_paths,
    read_files,
    remove_action,
    removed_paths,
    small_files,
)
from pubsub.pipeline.tables.delta_layout import (
    add_long_topics,
    check_layout,
    check_partitions,
    check_writable,
    lacks_long_topics,
    statistics_property,
)
from pubsub.pipeline.tables.file_names import (
    is_merge_of,
    new_merge_file,
    old_files,
    parse_batch_id,
)
from pubsub.pipeline.tables.files import WrittenFile, top_level_names, write_file
from pubsub.pipeline.tables.free_directory import require_free_directory
from pubsub.pipeline.tables.location import Location, StorageError, storage_errors, system_cause
from pubsub.pipeline.tables.merging import MergeFailures, merge_groups
from pubsub.pipeline.tables.partitions import Values, hive_directory
from pubsub.pipeline.tables.storage import open_storage

# The rows of that many groups are in memory.
_MERGES_AT_ONCE = 2
_KEPT_SECONDS = 7 * 86_400
_COMMIT_ATTEMPTS = 10


def open_delta(where: str | Location, version: int | None = None) -> DeltaTable:
    """Return the table at a path, URL or location.

    Raises ConfigurationError if there is none, and StorageError.
    """
    location = Location.of(where)
    try:
        with storage_errors(location):
            if not location.is_local and not is_delta(location):
                raise TableNotFoundError
            return load_table(location, version)
    except TableNotFoundError:
        raise ConfigurationError(f"{location}: not a Delta table") from None
    except DeltaError as error:
        raise ConfigurationError(f"{location}: cannot read the Delta table: {error}") from None


class Delta:
    """The Delta table at ``where``, a path, URL or location, partitioned by ``partition_by``.

    ``schema`` has all its columns. The table is created before its first file is written.
    """

    keeps_partition_columns = False
    staging = ""
    directory_of = staticmethod(hive_directory)

    def __init__(
        self, where: str | Location, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        self.location = Location.of(where)
        self.path = self.location.url
        self.storage = open_storage(self.location)
        self.schema = schema
        self.partition_by = list(partition_by)

    @staticmethod
    def check_directory(where: str | Location, files: Sequence[WrittenFile] = ()) -> None:
        """Raise ConfigurationError if the directory has contents other than a Delta table.

        ``files``, which are not committed yet, are permitted.
        """
        location = Location.of(where)
        with storage_errors(location):
            found = is_delta(location)
        if not found:
            own = ["_delta_log", *top_level_names(files)]
            require_free_directory(location, "Delta table", own)

    def open(self) -> DeltaTable:
        """Return the newest version of the table, which must exist."""
        return load_table(self.location)

    def create_if_missing(self) -> None:
        """Create the table unless it exists. Must be called before files are written.

        Raises ConfigurationError if the directory has other contents, or another table.
        """
        with storage_errors(self.location):
            self._table()

    def commit(self, files: Sequence[WrittenFile], query: str, batch: int) -> bool:
        """Add ``files``, written by batch number ``batch`` of ``query``, in one transaction.

        Returns False if the table has that batch or a later one of the query. Then the files are
        removed, and the table does not change.
        """
        with storage_errors(self.location):
            return self._commit(files, query, batch)

    def _commit(self, files: Sequence[WrittenFile], query: str, batch: int) -> bool:
        for _ in range(_COMMIT_ATTEMPTS):
            table = self._table(files)
            if last_delta_batch(table, query) >= batch:
                self.discard(files, query)
                return False
            # Another writer can delete rows or change the columns meanwhile, or be another run of
            # the query.
            with suppress(CommitFailedError):
                self._append(table, files, query, batch)
                return True
        raise StorageError(
            f"{self.location}: other writers keep changing the table; run the job again"
        )

    def last_batch(self, query: str) -> int:
        """Return the number of the last batch of ``query`` in the table, or -1."""
        with storage_errors(self.location):
            return last_delta_batch(self.open(), query)

    def batch_rows(self, query: str, batch: int) -> int | None:
        """Return the rows of a batch that is one of the latest commits, or None."""
        with storage_errors(self.location):
            return delta_batch_rows(self.open(), query, batch)

    def _append(
        self, table: DeltaTable, files: Sequence[WrittenFile], query: str, batch: int
    ) -> None:
        now = _milliseconds()
        table.create_write_transaction(
            [self._add(file, now, True) for file in files],
            "append",
            table.schema(),
            self.partition_by,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(query, batch, now)],
                custom_metadata=batch_metadata(files, query, batch),
            ),
        )

    def discard(self, files: Sequence[WrittenFile], query: str) -> None:
        """Remove ``files`` of ``query`` after their commit was refused or failed.

        Files that the table lists stay, as a commit can fail after it took effect.
        """
        with storage_errors(self.location):
            listed = listed_paths(self.open())
        for file in files:
            if file.path not in listed:
                self.storage.remove(file.path)

    def _table(self, files: Sequence[WrittenFile] = ()) -> DeltaTable:
        self.check_directory(self.location, files)
        try:
            table = self.open()
        except TableNotFoundError:
            table = self._create()
        except DeltaError as error:
            if not self.location.is_local:
                raise
            raise ConfigurationError(
                f"{self.path}: cannot read the table: {_first_line(error)}; its log is damaged, "
                "or it has a feature that the package deltalake lacks, such as column mapping; "
                "choose another directory"
            ) from None
        check_writable(self.location, table)
        if lacks_long_topics(table, self.schema):
            add_long_topics(table)
            table = self.open()
        check_layout(self.location, table, self.schema, self.partition_by)
        return table

    def _create(self) -> DeltaTable:
        check_partitions(self.location, self.schema, self.partition_by)
        try:
            return DeltaTable.create(
                self.path,
                self.schema,
                mode="ignore",
                partition_by=self.partition_by or None,
                configuration=statistics_property(self.schema, self.partition_by),
                storage_options=self.location.storage_options,
            )
        except Exception as error:
            if isinstance(error, OSError) and not self.location.is_local:
                raise
            # deltalake has no exception class for a type that Delta does not support.
            cause = system_cause(error) or f"{_first_line(error)}; change its columns"
            raise ConfigurationError(f"{self.path}: cannot create the table: {cause}") from None

    def _add(self, file: WrittenFile, now: int, change: bool) -> AddAction:
        stats = json.dumps(
            {
                "numRecords": file.rows,
                "minValues": dict(file.low),
                "maxValues": dict(file.high),
                "nullCount": dict(file.nulls),
            }
        )
        values = dict(zip(self.partition_by, file.values, strict=True))
        return AddAction(file.path, file.size, values, now, change, stats)

    def compact(self) -> int:
        """Merge small files, each group in one transaction, and return the number of files
        replaced.

        The order of the offsets is kept. Replaced files stay on the disk for a week, for readers of
        older versions. After that they are removed, and so are leftovers of killed writers.
        """
        with storage_errors(self.location):
            return self._compact() if is_delta(self.location) else 0

    def _compact(self) -> int:
        table = self.open()
        check_writable(self.location, table)
        groups = [
            (values, group)
            for values, files in small_files(table, self.partition_by).items()
            for group in merge_groups(files, _size_of)
        ]
        replaced, failures = 0, MergeFailures()
        with ThreadPoolExecutor(_MERGES_AT_ONCE) as pool:
            merges = [pool.submit(self._merge, table, *group) for group in groups]
            try:
                for (_, group), merge in zip(groups, merges, strict=True):
                    with failures.noted():
                        replaced += self._replace_group(group, merge.result())
            finally:
                pool.shutdown(cancel_futures=True)
        self._clean()
        failures.raise_first()
        return replaced

    def _merge(self, table: DeltaTable, values: Values, group: list[dict[str, Any]]) -> WrittenFile:
        """Write the rows of the files ``group`` to one file; runs in a thread."""
        paths = [file["path"] for file in group]
        rows = read_files(self.storage, paths, table)
        path = new_merge_file(hive_directory(self.partition_by, values), paths[0])
        return write_file(self.storage, path, values, rows)

    def _replace_group(self, group: list[dict[str, Any]], merged: WrittenFile) -> int:
        """Replace ``group``; return its number of files, or 0 if another writer replaced them."""
        paths = [file["path"] for file in group]
        for _ in range(_COMMIT_ATTEMPTS):
            table = self.open()
            if has_deletion_vectors(table) or not listed_paths(table).issuperset(paths):
                return 0
            if self.replace(table, group, [merged]):
                return len(group)
        return 0

    def replace(
        self, table: DeltaTable, old: Sequence[dict[str, Any]], new: Sequence[WrittenFile]
    ) -> bool:
        """Replace files by others with the same rows; return False if ``table`` is not the newest.

        ``old`` has the files as ``listed_files`` returns them.
        """
        now = _milliseconds()
        removed = [remove_action(file, now, self.partition_by) for file in old]
        # By its retries deltalake would let two writers remove the same file, and each add its
        # rows again. Without retries the commit succeeds only on the version that was examined.
        only_to_this_version = CommitProperties(max_commit_retries=0)
        with suppress(CommitFailedError):
            table.create_write_transaction(
                [*removed, *[self._add(file, now, False) for file in new]],
                "append",
                table.schema(),
                self.partition_by,
                commit_properties=only_to_this_version,
            )
            return True
        return False

    def _clean(self) -> None:
        """Remove files that the log removed at least a week ago, and leftovers of that age."""
        with suppress(CommitFailedError):
            # A full vacuum would remove every unknown file in the directory, of any program.
            self.open().vacuum(dry_run=False, full=False)
        for path in self._leftovers(time.time() - _KEPT_SECONDS):
            self.storage.remove(path)

    def _leftovers(self, before: float) -> list[str]:
        """Return files older than ``before`` that killed or failed writers left.

        Age alone is not enough, as clocks can be wrong. The log shows which files can no longer be
        committed: those of a finished batch, and those of a merge whose sources are removed.
        """
        table = self.open()
        removed = removed_paths(table)
        known = listed_paths(table) | removed

        def is_leftover(path: str) -> bool:
            batch = parse_batch_id(path)
            if batch is None:
                return is_merge_of(path, removed)
            done = table.transaction_version(batch.query)
            return done is not None and done >= batch.number

        found = old_files(self.storage, len(self.partition_by), before)
        return [path for path in found if path not in known and is_leftover(path)]


def _size_of(file: Mapping[str, Any]) -> int:
    size: int = file["size_bytes"]
    return size


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000
