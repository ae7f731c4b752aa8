"""Gives the files of an older table the directories that every reader of Delta understands.

Earlier versions named directories ``orders/2026-03-01``. Readers that take the values of partitions
from the directories, such as polars, read nulls there.
"""

from __future__ import annotations

import argparse
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.tables.delta import Delta, open_delta
from pubsub.pipeline.tables.delta_files import (
    has_deletion_vectors,
    listed_files,
    partition_values,
    read_files,
)
from pubsub.pipeline.tables.file_names import new_merge_file
from pubsub.pipeline.tables.files import WrittenFile, statistics, write_file
from pubsub.pipeline.tables.location import Location, storage_errors, table_location
from pubsub.pipeline.tables.partitions import (
    LONG_TOPIC,
    hive_directory,
    is_hive_directory,
    topic_bucket,
)

# Files that are moved in one transaction.
_GROUP = 500
_ATTEMPTS = 10


def run(options: argparse.Namespace) -> int:
    """Migrate the table of the command line and print the number of files; return 0."""
    print(f"{migrate(table_location(options))} files have a new directory")
    return 0


def migrate(where: str | Location) -> int:
    """Move the files of the table at a path, URL or location, and return their number.

    Each group of files is moved in one transaction: another writer may add and merge files
    meanwhile, and a migration that was killed continues when it is called again. The old files stay
    for a week, for readers of older versions; on one file system they take no space.

    Raises ConfigurationError if there is no Delta table, and PubSubError if other writers keep
    replacing the files.
    """
    location = Location.of(where)
    with storage_errors(location):
        return _migrate(location)


def _migrate(location: Location) -> int:
    table = open_delta(location)
    names = table.metadata().partition_columns
    schema = pa.schema(table.schema().to_arrow())
    if "topic" in names and LONG_TOPIC not in schema.names:
        schema = schema.append(pa.field(LONG_TOPIC, pa.string()))
    target = Delta(location, schema, names)
    target.create_if_missing()
    moved = failures = 0
    while group := _old_files(target, table := target.open())[:_GROUP]:
        if target.replace(table, group, [_moved(target, table, file) for file in group]):
            moved, failures = moved + len(group), 0
        else:
            failures += 1
        if failures == _ATTEMPTS:
            raise PubSubError(
                f"{location}: other writers change the table; stop them and try again"
            )
    return moved


def _old_files(target: Delta, table: DeltaTable) -> list[dict[str, Any]]:
    """Return the files whose directories have other names. Raises ConfigurationError."""
    if has_deletion_vectors(table):
        raise ConfigurationError(
            f"{target.path}: the table has deletion vectors, which a move of files would lose; "
            "rewrite its files with the engine that deleted the rows"
        )
    names = target.partition_by
    return [
        file
        for file in listed_files(table)
        if not is_hive_directory(names, _directory(file["path"]))
    ]


def _directory(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent


def _moved(target: Delta, table: DeltaTable, file: dict[str, Any]) -> WrittenFile:
    """Return ``file`` at its new path; it is written again if its topic gets another value."""
    names = target.partition_by
    values = partition_values(file, names)
    new = tuple(
        topic_bucket(value) if name == "topic" and value is not None else value
        for name, value in zip(names, values, strict=True)
    )
    path = new_merge_file(hive_directory(names, new), file["path"])
    rows = read_files(target.storage, [file["path"]], table)
    if new != values:
        name = pa.scalar(values[names.index("topic")], pa.string())
        rows = rows.append_column(LONG_TOPIC, pa.repeat(name, rows.num_rows))
        return write_file(target.storage, path, new, rows)
    target.storage.duplicate(file["path"], path)
    return WrittenFile(path, file["size_bytes"], rows.num_rows, new, *statistics(rows))
