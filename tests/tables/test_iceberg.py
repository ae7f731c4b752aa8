"""Iceberg tables without Spark, in a catalog in a SQLite file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.expressions
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, LongType, NestedField, StringType
from twisted.trial.unittest import TestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables import iceberg, iceberg_catalog
from pubsub.pipeline.tables.file_names import BatchId
from pubsub.pipeline.tables.files import WrittenFile
from pubsub.pipeline.tables.iceberg import Iceberg, IcebergTarget
from pubsub.pipeline.tables.iceberg_catalog import IcebergName
from pubsub.pipeline.tables.iceberg_files import IcebergFiles
from pubsub.pipeline.tables.location import StorageError
from tests.tables.written_tables import (
    BY,
    SCHEMA,
    TOPICS,
    Died,
    all_files,
    batch,
    dies,
    make_old,
    scratch,
)

# Their constructors have types that mypy does not see.
EX: Any = pyiceberg.expressions


@contextmanager
def before_commit(call: Callable[[], object]) -> Iterator[None]:
    """Make ``call`` before each commit to a catalog, except for those that it makes itself."""
    commit = SqlCatalog.commit_table

    def interrupted(*arguments: Any) -> Any:
        with patch.object(SqlCatalog, "commit_table", commit):
            call()
        return commit(*arguments)

    with patch.object(SqlCatalog, "commit_table", interrupted):
        yield


class IcebergTests(TestCase):
    """A table of messages."""

    def setUp(self) -> None:
        self.root = scratch(self)
        os.mkdir(self.root)
        self.options = (
            ("type", "sql"),
            ("uri", f"sqlite:///{self.root}/catalog.db"),
            ("warehouse", f"file://{self.root}/warehouse"),
        )
        self.name = IcebergName("lake.messages", "tests", self.options)
        self.target = IcebergTarget(self.name, BY)
        self.table = Iceberg(self.name, SCHEMA, BY)

    def catalog(self) -> Catalog:
        return load_catalog("tests", **dict(self.options))

    def write(self, query: str, number: int, rows: pa.RecordBatch) -> list[WrittenFile]:
        """Write the files of one batch, as workers do."""
        writer = self.target.prepared().writer(BatchId(query, number))
        writer.add(rows)
        return writer.finish()

    def put(self, query: str, number: int, rows: pa.RecordBatch) -> bool:
        self.table.create_if_missing()
        return self.table.commit(self.write(query, number, rows), query, number)

    def fill(self, *numbers: int) -> None:
        for number in numbers:
            self.put("q", number, batch(16 * number, 16, ["orders"]))

    def rows(self) -> pa.Table:
        """Return the rows as pyiceberg reads them, by offset."""
        return self.catalog().load_table("lake.messages").scan().to_arrow().sort_by("offset")

    def offsets(self) -> list[int]:
        found: list[int] = self.rows()["offset"].to_pylist()
        return found

    def data(self) -> Path:
        """Return the directory of the data files."""
        return Path(self.table.open().location().removeprefix("file://"), "data")

    def listed(self) -> set[str]:
        """Return the files of the current snapshot."""
        return {file.path for file in iceberg._current(self.table.open())}

    def test_each_message_is_there_once_with_all_columns(self) -> None:
        assert self.put("q", 0, batch(0, 64))
        assert not self.put("q", 0, batch(0, 64))
        assert self.put("q", 1, batch(64, 32))
        assert not self.put("q", 0, batch(0, 64))
        expected = pa.Table.from_batches([batch(0, 96)])
        assert self.rows().select(SCHEMA.names).to_pylist() == expected.to_pylist()
        # The files of the refused batches are removed.
        assert {str(path) for path in all_files(self.data())} == self.listed()

    def test_queries_are_distinguished(self) -> None:
        self.put("q", 3, batch(0, 5))
        assert self.put("other", 3, batch(5, 5))
        assert self.offsets() == list(range(10))

    def test_snapshots_have_the_batch(self) -> None:
        self.put("q", 7, batch(0, 16))
        snapshot = self.table.open().current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary["pubsub-query"] == "q"
        assert snapshot.summary["pubsub-batch"] == "7"
        assert snapshot.summary["added-records"] == "16"

    def test_filters_skip_files(self) -> None:
        self.put("q", 0, batch(0, 64))
        table = self.catalog().load_table("lake.messages")
        for topic in TOPICS:
            scan = table.scan(row_filter=EX.EqualTo("topic", topic))
            assert scan.to_arrow()["value"].to_pylist() == [topic.encode()] * 4, topic
            assert len(list(scan.plan_files())) == 1
        for condition, files in (
            (EX.LessThan("timestamp", "2026-03-01T00:00:00+00:00"), 0),
            (EX.EqualTo("day", "2026-03-01"), len(TOPICS)),
            (EX.GreaterThan("offset", 63), 0),
            (EX.GreaterThanOrEqual("timestamp", "2026-03-01T12:00:00.063063+00:00"), 1),
        ):
            assert len(list(table.scan(row_filter=condition).plan_files())) == files, condition

    def test_other_readers(self) -> None:
        self.put("q", 0, batch(0, 64))
        table = self.catalog().load_table("lake.messages")
        metadata = table.metadata_location
        found = polars.scan_iceberg(metadata).select("topic", "offset").collect()
        assert sorted(found["topic"].unique().to_list()) == sorted(TOPICS)
        # DuckDB reads the files by pyiceberg, as its own reader is not in a package.
        connection = table.scan().to_duckdb("messages", duckdb.connect())
        counts = connection.execute(
            "SELECT topic, count(*) FROM messages GROUP BY topic"
        ).fetchall()
        assert dict(counts) == dict.fromkeys(TOPICS, 4)

    def test_a_kill_between_write_and_commit(self) -> None:
        commit = SqlCatalog.commit_table

        def commit_then_die(*arguments: Any) -> None:
            commit(*arguments)
            raise Died

        for number, replacement in enumerate((dies, commit_then_die)):
            with pytest.raises(Died), patch.object(SqlCatalog, "commit_table", replacement):
                self.fill(number)
            # The query runs its batch again, and the table accepts it once.
            self.fill(number)
            assert self.offsets() == list(range(16 * (number + 1)))
        self.fill(2, 3)
        for replacement in (dies, commit_then_die):
            with pytest.raises(Died), patch.object(SqlCatalog, "commit_table", replacement):
                self.table.compact()
            assert self.offsets() == list(range(64))
            self.table.compact()
            assert self.offsets() == list(range(64))
        assert len(self.listed()) == 1

    def test_a_commit_whose_outcome_is_not_known_keeps_its_files(self) -> None:
        """The catalog may take it before the client gives up, or afterwards."""
        commit, late = SqlCatalog.commit_table, []

        def at_once(*arguments: Any) -> None:
            commit(*arguments)
            raise TimeoutError("no reply")

        def later(*arguments: Any) -> None:
            late.append(arguments)
            raise TimeoutError("no reply")

        self.table.create_if_missing()
        for number, replacement in enumerate((at_once, later)):
            rows = batch(16 * number, 16)
            files = self.write("q", number, rows)
            with (
                pytest.raises(StorageError, match="the catalog fails: no reply"),
                patch.object(SqlCatalog, "commit_table", replacement),
            ):
                self.table.commit(files, "q", number)
            if late:
                commit(*late.pop())
            assert {file.path for file in files} <= self.listed()
            assert not self.put("q", number, rows)
            self.table.discard(files, "q")
            assert self.offsets() == list(range(16 * (number + 1)))

    def test_a_catalog_that_is_away_is_tried_again_by_a_job_that_runs(self) -> None:
        self.table.create_if_missing()
        self.target = IcebergTarget(self.name, BY).running()
        self.table = self.target.table(SCHEMA)
        commit = SqlCatalog.commit_table
        # Whether each commit takes effect, and whether it is answered.
        outcomes = [(False, False), (True, True), (True, False)]

        def fails_at_times(*arguments: Any) -> Any:
            takes_effect, is_answered = outcomes.pop(0)
            found = commit(*arguments) if takes_effect else None
            if not is_answered:
                raise TimeoutError("no reply")
            return found

        with patch.object(SqlCatalog, "commit_table", fails_at_times):
            assert self.put("q", 0, batch(0, 16))
            assert not self.put("q", 1, batch(16, 16))
        assert self.offsets() == list(range(32))
        load, failures = SqlCatalog.load_table, [OSError("gone")] * 2

        def is_away_at_first(*arguments: Any) -> Any:
            if failures:
                raise failures.pop()
            return load(*arguments)

        with patch.object(SqlCatalog, "load_table", is_away_at_first):
            assert self.put("q", 2, batch(32, 16))
        with (
            patch.object(SqlCatalog, "load_table", side_effect=OSError("gone")),
            patch.object(iceberg_catalog, "_PATIENCE_SECONDS", 0.1),
            pytest.raises(StorageError, match="the catalog fails: gone"),
        ):
            IcebergTarget(self.name, BY).running().prepared()

    def test_of_two_writers_of_one_batch_one_succeeds(self) -> None:
        self.table.create_if_missing()
        first, second = (self.write("q", 0, batch(0, 16, ["orders"])) for _ in range(2))
        with before_commit(lambda: self.table.commit(second, "q", 0)):
            assert not self.table.commit(first, "q", 0)
        assert self.offsets() == list(range(16))

    def test_another_query_commits_at_the_same_time(self) -> None:
        self.fill(0)
        numbers = iter(range(20))

        def interfere() -> None:
            number = next(numbers)
            self.put("other", number, batch(100 + number, 1, ["orders"]))

        with (
            before_commit(interfere),
            patch.object(iceberg, "_COMMIT_ATTEMPTS", 3),
            pytest.raises(StorageError, match="other writers keep changing the table"),
        ):
            self.fill(1)
        assert self.offsets() == [*range(16), 100, 101, 102]
        with before_commit(lambda: interfere() if next(numbers) < 5 else None):
            self.fill(1)
        assert self.offsets() == [*range(32), 100, 101, 102, 104]

    def test_a_merge_that_lost_against_another_adds_nothing(self) -> None:
        self.fill(0, 1, 2, 3)
        with before_commit(lambda: Iceberg(self.name, SCHEMA, BY).compact()):
            assert self.table.compact() == 0
        assert self.offsets() == list(range(64))

    def test_a_merge_that_loses_all_attempts_is_left_to_the_next_compaction(self) -> None:
        self.fill(0, 1, 2, 3)
        numbers = iter(range(100, 200))

        def interfere() -> None:
            number = next(numbers)
            self.put("other", number, batch(number, 1, ["others"]))

        with before_commit(interfere), patch.object(iceberg, "_COMMIT_ATTEMPTS", 2):
            assert self.table.compact() == 0
        others = next(numbers) - 100
        assert self.offsets() == [*range(64), *range(100, 100 + others)]
        assert self.table.compact() >= 4
        assert self.offsets() == [*range(64), *range(100, 100 + others)]

    def test_compaction_keeps_the_order_and_earlier_snapshots(self) -> None:
        for number, first in enumerate((48, 0, 32, 16)):
            self.put("q", number, batch(first, 16, ["orders"]))
        before = self.table.open().current_snapshot()
        assert before is not None
        assert self.table.compact() == 4
        (path,) = self.listed()
        found = self.catalog().load_table("lake.messages").scan().to_arrow()
        assert found["offset"].to_pylist() == list(range(64))
        old = self.catalog().load_table("lake.messages").scan(snapshot_id=before.snapshot_id)
        assert old.to_arrow().num_rows == 64
        assert not self.put("q", 3, batch(16, 16, ["orders"]))
        assert self.table.compact() == 0
        assert self.listed() == {path}

    def test_only_own_files_of_no_use_are_removed(self) -> None:
        self.fill(0, 1, 2, 3)
        left = {file.path for file in self.write("q", 1, batch(0, 16, ["orders"]))}
        waiting = {file.path for file in self.write("q", 9, batch(0, 16, ["orders"]))}
        partition = str(Path(next(iter(left))).parent)
        others = {"notes.txt", f"{partition}/notes.parquet", f"backup/{next(iter(left))}"}
        for name in others:
            (self.data() / name).parent.mkdir(parents=True, exist_ok=True)
            (self.data() / name).write_text("mine")
        replaced = self.listed()
        make_old(self.data())
        assert self.table.compact() == 4
        assert all_files(self.data()) == replaced | waiting | others | self.listed()
        # After a week the snapshots expire, with the files that they alone list.
        make_old(self.data())
        with patch.object(iceberg, "_KEPT", timedelta(days=-1)):
            self.table.compact()
        assert all_files(self.data()) == waiting | others | self.listed()
        assert self.offsets() == list(range(64))
        # The batch is known without its snapshot.
        assert not self.put("q", 3, batch(48, 16, ["orders"]))

    def test_files_that_others_added_are_not_merged(self) -> None:
        self.fill(0)
        for number in range(5):
            path = f"{self.data()}/{number}.parquet"
            pq.write_table(pa.Table.from_batches([batch(100 + number, 1, ["orders"])]), path)
            self.catalog().load_table("lake.messages").add_files([f"file://{path}"])
        assert self.table.compact() == 0
        assert self.offsets() == [*range(16), *range(100, 105)]

    def test_another_table_is_refused(self) -> None:
        self.catalog().create_namespace("lake")
        column = NestedField(1, "x", LongType(), required=False)
        self.catalog().create_table("lake.messages", Schema(column))
        with pytest.raises(ConfigurationError, match="has other partitions than topic, day"):
            self.table.create_if_missing()
        assert not self.data().exists()

    def test_other_columns_are_refused(self) -> None:
        self.table.create_if_missing()
        with pytest.raises(
            ConfigurationError, match="has other columns: x must be large_string, but"
        ):
            Iceberg(self.name, SCHEMA.append(pa.field("x", pa.string())), BY).create_if_missing()

    def test_columns_of_others_are_null(self) -> None:
        self.fill(0, 1)
        with self.catalog().load_table("lake.messages").update_schema() as change:
            change.add_column("note", StringType())
        self.fill(2)
        with self.catalog().load_table("lake.messages").update_schema() as change:
            change.move_first("note")
        self.fill(3)
        assert self.table.compact() == 4
        found = self.rows()
        expected = pa.Table.from_batches([batch(0, 64, ["orders"])])
        assert found.select(SCHEMA.names).to_pylist() == expected.to_pylist()
        assert found["note"].null_count == 64

    def test_a_required_column_of_others_is_refused(self) -> None:
        self.fill(0)
        with self.catalog().load_table("lake.messages").update_schema(True) as change:
            change.add_column("note", StringType(), required=True)
        with pytest.raises(ConfigurationError, match="column note of the table is required"):
            self.fill(1)
        assert len(all_files(self.data())) == 1

    def test_two_columns_of_one_name_are_not_merged(self) -> None:
        self.fill(0, 1)
        with self.catalog().load_table("lake.messages").update_schema() as change:
            change.delete_column("value")
        with self.catalog().load_table("lake.messages").update_schema() as change:
            change.add_column("value", BinaryType())
        self.fill(2, 3)
        before = self.rows()
        assert before["value"].null_count == 32
        assert self.table.compact() == 0
        assert self.rows() == before

    def test_another_format_is_refused(self) -> None:
        self.catalog().create_namespace("lake")
        columns = Schema(NestedField(1, "x", LongType(), required=False))
        old = {"format-version": "1"}
        self.catalog().create_table("lake.messages", columns, properties=old)
        with pytest.raises(ConfigurationError, match="has format version 1, but the jobs write"):
            self.table.create_if_missing()

    def test_without_a_table_there_is_nothing_to_merge(self) -> None:
        assert self.table.compact() == 0
        assert not (Path(self.root) / "warehouse").exists()

    def test_names_and_catalogs(self) -> None:
        for name in ("messages", "", "lake.", "/srv/archive"):
            with pytest.raises(ConfigurationError, match=r"is named NAMESPACE\.TABLE, not"):
                IcebergName(name, "tests")
        wrong = (("type", "sql"), ("uri", f"sqlite:///{self.root}/none/catalog.db?secret"))
        with pytest.raises(StorageError, match=r"tests: lake\.x: .*unable to open"):
            IcebergName("lake.x", "tests", wrong).open()
        with pytest.raises(StorageError) as caught:
            IcebergName("lake.x", "nowhere").open()
        assert "\n" not in str(caught.value)
        assert "secret" not in repr(IcebergName("lake.x", "tests", wrong))

    def test_credentials_are_not_shown_in_the_files_of_tasks(self) -> None:
        self.table.create_if_missing()
        files = IcebergFiles.of(self.table.open())
        assert dict(files.properties)["uri"] == f"sqlite:///{self.root}/catalog.db"
        assert "catalog.db" not in repr(files)

    def test_a_damaged_file_keeps_its_partition_alone_from_being_merged(self) -> None:
        self.table.create_if_missing()
        for number in range(4):
            writer = self.target.prepared().writer(BatchId("q", number))
            writer.add(batch(48 * number, 48, ["a", "b", "c"]))
            self.table.commit(writer.finish(), "q", number)
        (damaged, *_) = sorted(Path(self.root).glob("warehouse/lake/messages/data/b/*/*.parquet"))
        damaged.write_bytes(b"damaged")
        for _ in range(2):
            with pytest.raises(StorageError, match=f"{damaged}: cannot read the file"):
                self.table.compact()
            files = [task.file.file_path for task in self.table.open().scan().plan_files()]
            assert sorted(path.split("/")[-3] for path in files) == ["a", "b", "b", "b", "b", "c"]
