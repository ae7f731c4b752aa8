"""The files that a Delta table lists: their paths and partitions, and which to merge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from pubsub.pipeline.tables.files import WrittenFile
from pubsub.pipeline.tables.merging import FULL_FILE_BYTES
from pubsub.pipeline.tables.partitions import Values, partition_text
from pubsub.pipeline.tables.storage import Storage

_LATEST_COMMITS = 100


def last_delta_batch(table: DeltaTable, query: str) -> int:
    """Return the number of the last batch of ``query`` in the table, or -1."""
    known = table.transaction_version(query)
    return -1 if known is None else int(known)


def batch_metadata(files: Sequence[WrittenFile], query: str, batch: int) -> dict[str, str]:
    """Return what the commit of a batch records."""
    rows = sum(file.rows for file in files)
    return {"query": query, "batch": str(batch), "rows": str(rows)}


def delta_batch_rows(table: DeltaTable, query: str, batch: int) -> int | None:
    """Return the rows of a batch, or None if it is not among the latest commits."""
    for commit in table.history(_LATEST_COMMITS):
        if (commit.get("query"), commit.get("batch")) == (query, str(batch)) and "rows" in commit:
            return int(commit["rows"])
    return None


def listed_files(table: DeltaTable) -> list[dict[str, Any]]:
    """Return the files of the table, with their paths within it."""
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [{**action, "path": unquote(action["path"])} for action in actions]


def partition_values(file: Mapping[str, Any], partition_by: Sequence[str]) -> Values:
    """Return the values of the partition of a listed file."""
    return tuple(partition_text(file[f"partition.{name}"]) for name in partition_by)


def listed_paths(table: DeltaTable) -> set[str]:
    """Return the files of the table, by their paths within it."""
    return set(map(unquote, pa.table(table.get_add_actions())["path"].to_pylist()))


def removed_paths(table: DeltaTable) -> set[str]:
    """Return the removed files that the log still lists."""
    return set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False))


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Return whether rows of the table are deleted, while its files still have them.

    Other engines delete rows in this way. A copy of such a file would bring the rows back.
    """
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return False
    return bool(pa.table(table.deletion_vectors()).num_rows)


def small_files(
    table: DeltaTable, partition_by: Sequence[str]
) -> Mapping[Values, list[dict[str, Any]]]:
    """Return the files worth merging by partition, in the order of their offsets."""
    found: defaultdict[Values, list[dict[str, Any]]] = defaultdict(list)
    if has_deletion_vectors(table):
        return found
    for file in listed_files(table):
        if file["size_bytes"] < FULL_FILE_BYTES:
            found[partition_values(file, partition_by)].append(file)
    for files in found.values():
        files.sort(key=lambda file: (file.get("min.partition") or 0, file.get("min.offset") or 0))
    return found


def read_files(storage: Storage, paths: Sequence[str], table: DeltaTable) -> pa.Table:
    """Return the rows of files of ``table``, in the types of the table.

    Other engines store other types for the same ones, such as times in nanoseconds without a zone.
    """
    columns = pa.schema(table.schema().to_arrow())
    parts = [_typed(storage.read(path), columns) for path in paths]
    # Only files of before a column was added lack one.
    return pa.concat_tables(parts, promote_options="default")


def _typed(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    fields = [
        field.with_type(columns.field(field.name).type) if field.name in columns.names else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def remove_action(file: Mapping[str, Any], now: int, partition_by: Sequence[str]) -> RemoveAction:
    """Return the action that removes ``file``; ``now`` is in ms since the Unix epoch."""
    return RemoveAction(
        file["path"],
        deletion_timestamp=now,
        data_change=False,
        partition_values=dict(zip(partition_by, partition_values(file, partition_by), strict=True)),
        size=file["size_bytes"],
    )
