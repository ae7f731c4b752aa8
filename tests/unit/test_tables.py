"""Tables: batches to files by partition, commits that count once, compaction. No Spark."""

from __future__ import annotations

import datetime
import json
import os
import re
from contextlib import AbstractContextManager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from unittest.mock import patch

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder
from twisted.trial.unittest import TestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.parquet import ParquetFiles
from pubsub.pipeline.tables.parts import Parts, directory

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
Table = Delta | ParquetFiles


def batch(first: int, count: int, topics: list[str] | None = None) -> pa.RecordBatch:
    """Messages with these offsets, to the topics in turn."""
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


def put(table: Table, query: str, number: int, *batches: pa.RecordBatch) -> bool:
    """Write and commit one batch, as workers and driver do."""
    parts = Parts(table.path, table.by, table.keeps_partition_columns, table.staging)
    for each in batches:
        parts.add(each)
    return table.commit(parts.finish(), query, number)


def offsets(path: str) -> list[int]:
    """The offsets in a Delta table, each row checked to be in the partition it belongs to."""
    found = DeltaTable(path).to_pyarrow_table()
    for topic, value in zip(found["topic"].to_pylist(), found["value"].to_pylist(), strict=True):
        assert topic.encode() == value
    return sorted(found["offset"].to_pylist())


def scratch(test: TestCase) -> str:
    """A directory that is not there yet, and goes with the test."""
    parent = mkdtemp()
    test.addCleanup(rmtree, parent)
    return os.path.join(parent, "table")


class PartsTests(TestCase):
    """Files by partition."""

    def setUp(self) -> None:
        self.root = scratch(self)

    def test_each_partition_has_a_file_in_the_order_of_the_rows(self) -> None:
        parts = Parts(self.root, BY)
        parts.add(batch(0, 100))
        parts.add(batch(100, 60))
        files = parts.finish()
        assert sorted(f.values[0] for f in files) == sorted(TOPICS)
        assert sum(f.rows for f in files) == 160
        for file in files:
            found = ds.dataset(os.path.join(self.root, file.path)).to_table()
            assert found.column_names == [n for n in SCHEMA.names if n not in BY]
            assert {v.decode() for v in found["value"].to_pylist()} == {file.values[0]}
            assert found["offset"].to_pylist() == sorted(found["offset"].to_pylist())
            assert file.size == os.path.getsize(os.path.join(self.root, file.path))

    def test_what_is_held_is_bounded(self) -> None:
        parts = Parts(self.root, BY, held=1)
        parts.add(batch(0, 64))
        assert len(list(Path(self.root).rglob("*.parquet"))) == len(TOPICS)
        parts.add(batch(64, 64))
        assert sum(f.rows for f in parts.finish()) == 128

    def test_statistics_enclose_the_values(self) -> None:
        parts = Parts(self.root, BY)
        parts.add(batch(5, 3, ["orders"]))
        (file,) = parts.finish()
        assert (file.low["offset"], file.high["offset"]) == (5, 7)
        assert file.low["timestamp"] == "2026-03-01T12:00:00.005Z"
        # 7.007 ms, rounded up: a reader would pass the file over otherwise.
        assert file.high["timestamp"] == "2026-03-01T12:00:00.008Z"
        assert file.nulls["offset"] == 0
        assert "value" not in file.low

    def test_directories_are_safe_and_short_and_differ(self) -> None:
        found = [directory([topic, "2026-03-01"]) for topic in TOPICS]
        assert len(set(found)) == len(TOPICS)
        for path in found:
            assert re.search(r"\A[A-Za-z0-9_+-]{1,150}/2026-03-01\Z", path)

    def test_an_empty_batch_makes_no_file(self) -> None:
        parts = Parts(self.root, BY)
        parts.add(batch(0, 0))
        assert parts.finish() == []

    def test_without_partition_columns_there_is_one_partition(self) -> None:
        parts = Parts(self.root, ())
        parts.add(batch(0, 32))
        (file,) = parts.finish()
        assert (file.values, file.rows) == ((), 32)
        assert "/" not in file.path


class CommitTests(TestCase):
    """Both kinds of table take a batch of a query once."""

    def setUp(self) -> None:
        self.path = scratch(self)

    def test_a_batch_counts_once_in_delta(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        assert put(table, "q", 0, batch(0, 32))
        assert put(table, "q", 1, batch(32, 32))
        assert not put(table, "q", 1, batch(32, 32))
        assert not put(table, "q", 0, batch(0, 32))
        assert offsets(self.path) == list(range(64))
        # What the batches that did not count had written is gone.
        listed = len(DeltaTable(self.path).file_uris())
        assert len(list(Path(self.path).rglob("*.parquet"))) == listed

    def test_queries_are_told_apart(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        put(table, "q", 3, batch(0, 5))
        assert put(table, "other", 3, batch(5, 5))
        assert offsets(self.path) == list(range(10))

    def test_odd_topics_can_be_asked_for(self) -> None:
        put(Delta(self.path, SCHEMA, BY), "q", 0, batch(0, 64))
        for topic in TOPICS:
            found = DeltaTable(self.path).to_pyarrow_table(filters=[("topic", "=", topic)])
            assert found.num_rows == 4, topic

    def test_other_readers_find_the_files(self) -> None:
        put(Delta(self.path, SCHEMA, BY), "q", 0, batch(0, 64))
        # The package's own engine goes by URLs, as readers of object stores do.
        engine = QueryBuilder().register("t", DeltaTable(self.path))
        found = pa.table(engine.execute("SELECT topic, count(*) AS n FROM t GROUP BY topic"))
        assert dict(
            zip(found["topic"].to_pylist(), found["n"].to_pylist(), strict=True)
        ) == dict.fromkeys(TOPICS, 4)

    def test_a_table_of_another_shape_is_refused(self) -> None:
        put(Delta(self.path, SCHEMA, BY), "q", 0, batch(0, 3))
        with pytest.raises(ConfigurationError, match="partitioned by topic, day, not by day"):
            put(Delta(self.path, SCHEMA, ("day",)), "q", 1, batch(3, 3))
        other = SCHEMA.append(pa.field("more", pa.int32()))
        with pytest.raises(ConfigurationError, match="column more would be int32; the table"):
            Delta(self.path, other, BY).commit([], "q", 1)

    def test_a_batch_counts_once_in_parquet(self) -> None:
        table = ParquetFiles(self.path, SCHEMA, BY)
        assert put(table, "q", 0, batch(0, 32))
        assert not put(table, "q", 0, batch(0, 32))
        assert put(table, "q", 1, batch(32, 32))
        self.check_parquet(64)

    def check_parquet(self, count: int) -> None:
        found = ds.dataset(self.path).to_table()
        assert sorted(found["offset"].to_pylist()) == list(range(count))
        for topic, value in zip(
            found["topic"].to_pylist(), found["value"].to_pylist(), strict=True
        ):
            assert topic.encode() == value

    def test_parquet_goes_on_after_a_death_anywhere_in_a_commit(self) -> None:
        moves = 0

        class Died(Exception):
            pass

        def dying(_source: str, _target: str) -> None:
            nonlocal moves
            if moves == 0:
                raise Died
            moves -= 1
            os.rename(_source, _target)

        # Before the commit's own rename, after it, and after some of the files' renames.
        for batch_number, survived in enumerate(range(len(TOPICS) + 1)):
            moves = survived
            table = ParquetFiles(self.path, SCHEMA, BY)
            with pytest.raises(Died), self.patched(dying):
                put(table, "q", batch_number, batch(16 * batch_number, 16))
            # The query runs its batch again, and it counts once.
            put(table, "q", batch_number, batch(16 * batch_number, 16))
            self.check_parquet(16 * (batch_number + 1))

    def patched(self, replacement: object) -> AbstractContextManager[object]:
        return patch("pubsub.pipeline.tables.parquet.os.replace", replacement)


class CompactionTests(TestCase):
    """Small files become one, and no row changes."""

    def setUp(self) -> None:
        self.path = scratch(self)

    def test_small_files_are_merged_in_order(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        # Committed out of order, as tasks may be.
        for number, first in enumerate((64, 0, 128, 32, 96)):
            put(table, "q", number, batch(first, 32))
        before = len(DeltaTable(self.path).file_uris())
        assert table.compact() == before
        assert len(DeltaTable(self.path).file_uris()) == len(TOPICS)
        assert offsets(self.path) == list(range(160))
        one = DeltaTable(self.path).to_pyarrow_table(filters=[("topic", "=", "..")])
        assert one["offset"].to_pylist() == sorted(one["offset"].to_pylist())
        # The memory of the query outlives it, and nothing is left to do.
        assert not put(table, "q", 4, batch(96, 32))
        assert table.compact() == 0

    def test_readers_of_the_version_before_still_can(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        for number in range(5):
            put(table, "q", number, batch(16 * number, 16))
        version = DeltaTable(self.path).version()
        table.compact()
        old = DeltaTable(self.path, version).to_pyarrow_table()
        assert sorted(old["offset"].to_pylist()) == list(range(80))

    def test_no_table_is_nothing_to_do(self) -> None:
        assert Delta(self.path, SCHEMA, BY).compact() == 0
        assert not os.path.exists(self.path)

    def test_checkpoints_in_the_directory_stay(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        put(table, "q", 0, batch(0, 3))
        kept = Path(self.path, "_checkpoints", "archive", "offsets", "0")
        kept.parent.mkdir(parents=True)
        kept.write_text(json.dumps({}))
        os.utime(kept, (0, 0))
        table.compact()
        assert kept.exists()
