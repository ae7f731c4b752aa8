"""Delta tables by the package ``deltalake``: no jar, and one transaction a batch."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.names import batch_of, directory, merge_file, old_files, replaces
from pubsub.pipeline.tables.parts import File, Values, places, write_file
from pubsub.pipeline.tables.vacancy import require_vacant

FULL = 128 * 1024 * 1024
"""Bytes from which on a file is large enough to be left alone by compaction."""
_FEWEST = 4
_KEPT_SECONDS = 7 * 86_400
_TRIES = 10
_TRY = "Name another directory, or give the options that the table was made with"


class Delta:
    """The Delta table in the directory ``path``, partitioned by the columns ``by``.

    ``schema`` has all its columns. The table is made before the first file of it is written.
    """

    keeps_partition_columns = False
    staging = ""

    def __init__(self, path: str, schema: pa.Schema, by: Sequence[str]) -> None:
        self.path = os.path.abspath(path)
        self.schema = schema
        self.by = list(by)

    @staticmethod
    def admit(path: str, files: Sequence[File] = ()) -> None:
        """Raises ConfigurationError if ``path`` has a content other than a Delta table.

        ``files``, which wait to be committed, may be there.
        """
        if not os.path.isdir(path) or not DeltaTable.is_deltatable(path):
            require_vacant(path, "Delta table", ["_delta_log", *places(files)])

    def prepare(self) -> None:
        """Make the table unless it is there. To be called before files of it are written.

        Raises ConfigurationError if the directory has another content, or another table.
        """
        self._table()

    def commit(self, files: Sequence[File], query: str, batch: int) -> bool:
        """Add ``files``, which batch number ``batch`` of ``query`` wrote, in one transaction.

        False if that batch, or a later one of the same query, is in the table already: then the
        files are removed, and nothing changes.
        """
        table = self._table(files)
        known = table.transaction_version(query)
        if known is not None and known >= batch:
            self.discard(files, query)
            return False
        now = _milliseconds()
        table.create_write_transaction(
            [self._add(file, now, True) for file in files],
            "append",
            table.schema(),
            self.by,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(query, batch, now)],
                custom_metadata={"query": query, "batch": str(batch)},
            ),
        )
        return True

    def discard(self, files: Sequence[File], query: str) -> None:
        """Remove ``files`` of ``query``, whose commit was refused or failed.

        Those that are in the table stay: a commit may fail when all of it is done.
        """
        listed = _paths(DeltaTable(self.path))
        for file in files:
            if file.path not in listed:
                Path(self.path, file.path).unlink(missing_ok=True)

    def _table(self, files: Sequence[File] = ()) -> DeltaTable:
        self.admit(self.path, files)
        try:
            table = DeltaTable(self.path)
        except TableNotFoundError:
            table = self._create()
        except DeltaError as error:
            raise ConfigurationError(
                f"{self.path}: the table cannot be read: {_first_line(error)}. "
                "Mend its log, or name another directory"
            ) from None
        check(table, self)
        return table

    def _create(self) -> DeltaTable:
        os.makedirs(self.path, exist_ok=True)
        try:
            return DeltaTable.create(
                self.path, self.schema, mode="ignore", partition_by=self.by or None
            )
        except Exception as error:
            # The package raises no class of its own for a type that Delta does not have.
            raise ConfigurationError(
                f"{self.path}: the table cannot be made: {_first_line(error)}. Change its columns"
            ) from None

    def _add(self, file: File, now: int, change: bool) -> AddAction:
        stats = json.dumps(
            {
                "numRecords": file.rows,
                "minValues": dict(file.low),
                "maxValues": dict(file.high),
                "nullCount": dict(file.nulls),
            }
        )
        values = dict(zip(self.by, file.values, strict=True))
        return AddAction(file.path, file.size, values, now, change, stats)

    def compact(self) -> int:
        """Make one file of many small ones, a group of files a transaction; how many went.

        The order of the offsets is kept. What was replaced stays on the disk for a week, for
        readers of older versions; then it is removed, and so are leftovers of killed writers.
        """
        if not DeltaTable.is_deltatable(self.path):
            return 0
        small = _small(DeltaTable(self.path), self.by)
        gone = sum(
            self._merge(values, group)
            for values, files in small.items()
            for group in _groups(files)
        )
        self._clean()
        return gone

    def _merge(self, values: Values, group: list[dict[str, Any]]) -> int:
        """Replace the files ``group`` by one; how many went: none if somebody else was first."""
        paths = [file["path"] for file in group]
        rows = pa.concat_tables(
            [pq.ParquetFile(os.path.join(self.path, path)).read() for path in paths]
        )
        path = merge_file(directory(values), paths[0])
        merged = write_file(os.path.join(self.path, path), path, values, rows)
        now = _milliseconds()
        removed = [_remove(f, now, dict(zip(self.by, values, strict=True))) for f in group]
        for _ in range(_TRIES):
            table = DeltaTable(self.path)
            if not _paths(table).issuperset(paths):
                return 0
            # The package would let two writers remove the same file, and each add its rows again.
            # Without a retry of its own it commits to the version that was just looked at, or not.
            only_to_this_version = CommitProperties(max_commit_retries=0)
            with suppress(CommitFailedError):
                table.create_write_transaction(
                    [*removed, self._add(merged, now, False)],
                    "append",
                    table.schema(),
                    self.by,
                    commit_properties=only_to_this_version,
                )
                return len(group)
        return 0

    def _clean(self) -> None:
        """Remove what the log removed a week ago or more, and leftovers as old as that."""
        with suppress(CommitFailedError):
            # Not full: that would remove every other file in the directory, whoever wrote it.
            DeltaTable(self.path).vacuum(dry_run=False, full=False)
        for path in self._leftovers(time.time() - _KEPT_SECONDS):
            Path(self.path, path).unlink(missing_ok=True)

    def _leftovers(self, before: float) -> list[str]:
        """Files that writers left behind which were killed or failed, older than ``before``.

        Age alone proves nothing, as clocks may be wrong. The log says what can no longer be
        committed: a file of a batch that is done, or of a merge of files that are gone.
        """
        table = DeltaTable(self.path)
        removed = _removed(table)
        known = _paths(table) | removed

        def is_dead(path: str) -> bool:
            batch = batch_of(path)
            if batch is None:
                return replaces(path, removed)
            done = table.transaction_version(batch.query)
            return done is not None and done >= batch.number

        found = old_files(self.path, len(self.by), before)
        return [path for path in found if path not in known and is_dead(path)]


def check(table: DeltaTable, wanted: Delta) -> None:
    """Raises ConfigurationError if ``table`` is not one that ``wanted`` could have made."""
    columns = table.metadata().partition_columns
    if columns != wanted.by:
        raise ConfigurationError(
            f"{wanted.path}: the table is partitioned by {', '.join(columns) or 'nothing'}, "
            f"not by {', '.join(wanted.by) or 'nothing'}. {_TRY}"
        )
    have = pa.schema(table.schema().to_arrow())
    for field in wanted.schema:
        at = have.get_field_index(field.name)
        if at < 0 or have.field(at).type != field.type:
            found = "no such column" if at < 0 else str(have.field(at).type)
            raise ConfigurationError(
                f"{wanted.path}: column {field.name} would be {field.type}; the table has {found}. "
                f"{_TRY}"
            )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _paths(table: DeltaTable) -> set[str]:
    """The files of the table, by their paths within it."""
    return set(pa.table(table.get_add_actions())["path"].to_pylist())


def _removed(table: DeltaTable) -> set[str]:
    """The files that the log has removed and still remembers."""
    return set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False))


def _small(table: DeltaTable, by: Sequence[str]) -> Mapping[Values, list[dict[str, Any]]]:
    """The files worth merging, by partition, in the order of their offsets."""
    found: defaultdict[Values, list[dict[str, Any]]] = defaultdict(list)
    for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        if action["size_bytes"] < FULL:
            found[tuple(str(action[f"partition.{name}"]) for name in by)].append(action)
    for files in found.values():
        files.sort(key=lambda file: (file.get("min.partition") or 0, file.get("min.offset") or 0))
    return found


def _groups(files: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Neighbours that together make a file that is full, if there are enough of them."""
    groups: list[list[dict[str, Any]]] = [[]]
    size = 0
    for file in files:
        if size >= FULL:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file["size_bytes"]
    return [group for group in groups if len(group) >= _FEWEST]


def _remove(file: Mapping[str, Any], now: int, values: dict[str, Any]) -> RemoveAction:
    return RemoveAction(
        file["path"],
        deletion_timestamp=now,
        data_change=False,
        partition_values=values,
        size=file["size_bytes"],
    )


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000
