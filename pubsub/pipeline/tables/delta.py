"""Delta tables by the package ``deltalake``: no jar, and one transaction a batch."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.parts import File, Values, directory, write_file

FULL = 128 * 1024 * 1024
"""Bytes from which on a file is large enough to be left alone by compaction."""
_FEWEST = 4
_KEPT_HOURS = 168


class Delta:
    """The Delta table in the directory ``path``, partitioned by the columns ``by``.

    ``schema`` has all its columns. The table is made when the first batch is committed.
    """

    keeps_partition_columns = False
    staging = ""

    def __init__(self, path: str, schema: pa.Schema, by: Sequence[str]) -> None:
        self.path = os.path.abspath(path)
        self.schema = schema
        self.by = list(by)

    def commit(self, files: Sequence[File], query: str, batch: int) -> bool:
        """Add ``files``, which batch number ``batch`` of ``query`` wrote, in one transaction.

        False if that batch, or a later one of the same query, is in the table already: then the
        files are removed, and nothing changes.
        """
        table = self._table()
        known = table.transaction_version(query)
        if known is not None and known >= batch:
            for file in files:
                os.unlink(os.path.join(self.path, file.path))
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

    def _table(self) -> DeltaTable:
        try:
            table = DeltaTable(self.path)
        except TableNotFoundError:
            os.makedirs(self.path, exist_ok=True)
            table = DeltaTable.create(
                self.path, self.schema, mode="ignore", partition_by=self.by or None
            )
        check(table, self)
        return table

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
        """Make one file of many small ones, a partition a transaction; how many went.

        The order of the offsets is kept. What was replaced stays on the disk for a week, for
        readers of older versions, as do files of writers that were killed; then it is removed.
        """
        if not DeltaTable.is_deltatable(self.path):
            return 0
        table = DeltaTable(self.path)
        gone = 0
        for values, files in _small(table, self.by).items():
            gone += self._merge(values, files)
        with suppress(CommitFailedError):
            DeltaTable(self.path).vacuum(_KEPT_HOURS, dry_run=False, full=True)
        return gone

    def _merge(self, values: Values, files: list[dict[str, Any]]) -> int:
        for group in _groups(files):
            tables = [pq.ParquetFile(os.path.join(self.path, f["path"])).read() for f in group]
            path = f"{directory(values)}/{uuid.uuid4().hex}.parquet".lstrip("/")
            target = os.path.join(self.path, path)
            added = write_file(target, path, values, pa.concat_tables(tables))
            now = _milliseconds()
            removed = [_remove(f, now, dict(zip(self.by, values, strict=True))) for f in group]
            table = DeltaTable(self.path)
            try:
                table.create_write_transaction(
                    [*removed, self._add(added, now, False)], "append", table.schema(), self.by
                )
            except CommitFailedError:
                # Somebody else replaced them meanwhile.
                os.unlink(target)
                return 0
        return sum(map(len, _groups(files)))


def check(table: DeltaTable, wanted: Delta) -> None:
    """Raises ConfigurationError if ``table`` is not one that ``wanted`` could have made."""
    columns = table.metadata().partition_columns
    if columns != wanted.by:
        raise ConfigurationError(
            f"{wanted.path}: the table is partitioned by {', '.join(columns) or 'nothing'}, "
            f"not by {', '.join(wanted.by) or 'nothing'}"
        )
    have = pa.schema(table.schema().to_arrow())
    for field in wanted.schema:
        at = have.get_field_index(field.name)
        if at < 0 or have.field(at).type != field.type:
            found = "no such column" if at < 0 else str(have.field(at).type)
            raise ConfigurationError(
                f"{wanted.path}: column {field.name} would be {field.type}; the table has {found}"
            )


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
