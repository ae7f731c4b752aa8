"""Tables with batches, and writers that die."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from deltalake import DeltaTable
from twisted.trial.unittest import TestCase

from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.file_names import (
    BatchId,
)
from pubsub.pipeline.tables.files import PartitionWriter, WrittenFile
from pubsub.pipeline.tables.parquet import ParquetFiles

TOPICS = [
    "orders", "a/b/../c", "..", ".", "/etc/passwd", 'q\'uo"te', "snow ☃ and 🦊", "a=b&c%20d",
    "__HIVE_DEFAULT_PARTITION__", "new\nline", " ", "null", "C:\\x", "é" * 127, "🦊" * 63, "7",
]  # fmt: skip
BY = ("topic", "day")
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("day", pa.date32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("value", pa.binary()),
        ("message_id", pa.string()),
    ]
)
WritableTable = Delta | ParquetFiles


def batch(first: int, count: int, topics: list[str] | None = None) -> pa.RecordBatch:
    """Return messages with these offsets, to the topics in turn."""
    names = topics or TOPICS
    day = datetime.date(2026, 3, 1)
    when = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
    rows = [
        {
            "topic": names[offset % len(names)],
            "day": day,
            "partition": 0,
            "offset": offset,
            "timestamp": when + datetime.timedelta(microseconds=offset * 1001),
            "value": names[offset % len(names)].encode(),
            "message_id": f"00000000-0000-8000-8000-{offset:012x}",
        }
        for offset in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def put(table: WritableTable, query: str, number: int, *batches: pa.RecordBatch) -> bool:
    """Write and commit one batch, as workers and driver do."""
    table.create_if_missing()
    return table.commit(write(table, query, number, *batches), query, number)


def write(
    table: WritableTable, query: str, number: int, *batches: pa.RecordBatch
) -> list[WrittenFile]:
    """Write the files of one batch, as workers do."""
    keep, staging = table.keeps_partition_columns, table.staging
    parts = PartitionWriter(
        table.path, table.partition_by, keep, staging, batch=BatchId(query, number)
    )
    for each in batches:
        parts.add(each)
    return parts.finish()


def scratch(test: TestCase) -> str:
    """Return a path for a directory that is removed after the test."""
    parent = mkdtemp()
    test.addCleanup(rmtree, parent)
    return os.path.join(parent, "table")


def fill(table: WritableTable, *numbers: int) -> None:
    """Commit batches of the query q, of 16 messages each, to one topic."""
    for number in numbers:
        put(table, "q", number, batch(16 * number, 16, ["orders"]))


def all_files(path: str | Path) -> set[str]:
    """Return all files and links at or below ``path``, by their paths within it."""
    found = (Path(root, name) for root, _, names in os.walk(path) for name in names)
    return {str(file.relative_to(path)) for file in found}


def make_old(path: str | Path) -> None:
    """Make everything at and below ``path`` very old, like a clock that is ahead."""
    for name in all_files(path):
        os.utime(Path(path, name), (0, 0), follow_symlinks=False)


class Died(BaseException):
    """Ends the process; no handler of the code under test may catch it."""


def dies(*_: object, **__: object) -> None:
    """Replaces a function in a process that is killed when it calls it."""
    raise Died


@contextmanager
def before_commit(call: Callable[[], object]) -> Iterator[None]:
    """Make ``call`` before each commit of a Delta table, except for those that it makes itself."""
    commit = DeltaTable.create_write_transaction

    def interrupted(*arguments: Any, **named: Any) -> None:
        with patch.object(DeltaTable, "create_write_transaction", commit):
            call()
        commit(*arguments, **named)

    with patch.object(DeltaTable, "create_write_transaction", interrupted):
        yield


def offsets(path: str) -> list[int]:
    """Return the offsets in a Delta table; checks that each row is in its partition."""
    found = DeltaTable(path).to_pyarrow_table()
    for topic, value in zip(found["topic"].to_pylist(), found["value"].to_pylist(), strict=True):
        assert topic.encode() == value
    return sorted(found["offset"].to_pylist())
