"""Delta tables in an object store: moto's S3."""

from __future__ import annotations

import atexit
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from threading import Barrier, Thread
from typing import Any
from unittest.mock import patch

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.report import load
from pubsub.pipeline.tables import delta, iceberg
from pubsub.pipeline.tables.delta import Delta, open_delta
from pubsub.pipeline.tables.delta_files import listed_files, removed_paths
from pubsub.pipeline.tables.file_names import BatchId, old_files
from pubsub.pipeline.tables.files import PartitionWriter, WrittenFile
from pubsub.pipeline.tables.iceberg import Iceberg, IcebergTarget
from pubsub.pipeline.tables.iceberg_catalog import IcebergName
from pubsub.pipeline.tables.iceberg_files import IcebergFiles
from pubsub.pipeline.tables.location import (
    Location,
    StorageError,
)
from pubsub.pipeline.tables.migrate import migrate
from pubsub.pipeline.tables.parquet import ParquetFiles
from pubsub.pipeline.tables.storage import Storage, open_storage
from tests.object_store import BUCKET, SECRET, ObjectStore, store_options
from tests.tables.written_tables import BY, SCHEMA, TOPICS, Died, batch, before_commit, dies
from tests.unit.fakes import scratch


def write(table: Delta, query: str, number: int, *batches: pa.RecordBatch) -> list[WrittenFile]:
    """Write the files of one batch, as workers do."""
    parts = PartitionWriter(table.location, table.partition_by, batch=BatchId(query, number))
    for each in batches:
        parts.add(each)
    return parts.finish()


def put(table: Delta, query: str, number: int, *batches: pa.RecordBatch) -> bool:
    """Write and commit one batch."""
    table.create_if_missing()
    return table.commit(write(table, query, number, *batches), query, number)


def fill(table: Delta, *numbers: int) -> None:
    """Commit batches of the query q, of 16 messages each, to one topic."""
    for number in numbers:
        put(table, "q", number, batch(16 * number, 16, ["orders"]))


def check_files(storage: Storage, url: str) -> None:
    """Check that a file that was not written to its end does not stay, and a damaged one is named.

    ``url`` is that of the files.
    """

    def write_half() -> None:
        with storage.create("x/half.parquet") as file:
            file.write(b"half")
            raise ValueError("no such encoding")

    with pytest.raises(ValueError, match="no such encoding"):
        write_half()
    assert not storage.exists("x/half.parquet")
    with storage.create("x/damaged.parquet") as file:
        file.write(b"damaged")
    with pytest.raises(StorageError, match="cannot read the file: ") as caught:
        storage.read("x/damaged.parquet")
    assert str(caught.value).startswith(f"{url}/x/damaged.parquet: ")
    storage.remove("x/damaged.parquet")
    assert not storage.exists("x/damaged.parquet")


@cache
def object_store() -> ObjectStore:
    """The store of all tests, until the process ends: a TestCase has no fixtures of a class."""
    store = ObjectStore()
    atexit.register(store.stop)
    return store


class ObjectStoreTests(SynchronousTestCase):
    """Tables at URLs of a store that replies."""

    def setUp(self) -> None:
        self.store = object_store()
        self.location = self.store.location(f"tables/{self.id()}")
        self.table = Delta(self.location, SCHEMA, BY)

    def offsets(self) -> list[int]:
        found = self.table.open().to_pyarrow_table()
        return sorted(found["offset"].to_pylist())

    def data_files(self, directory: str = "") -> set[str]:
        """Return the Parquet files below the table's directory, listed or not."""
        storage = open_storage(self.location)
        found = set()
        for entry in storage.entries(directory):
            path = f"{directory}/{entry.name}".lstrip("/")
            if entry.is_directory:
                found |= self.data_files(path)
            elif path.endswith(".parquet"):
                found.add(path)
        return found

    def put_object(self, path: str) -> None:
        with open_storage(self.location).create(path) as file:
            file.write(b"mine")

    def test_a_file_that_is_not_complete(self) -> None:
        check_files(open_storage(self.location), self.location.url)

    def test_a_batch_is_stored_once_with_any_names_of_topics(self) -> None:
        assert put(self.table, "q", 0, batch(0, 64))
        assert not put(self.table, "q", 0, batch(0, 64))
        table = self.table.open()
        for topic in TOPICS:
            found = table.to_pyarrow_table(filters=[("topic", "=", topic)])
            assert found["value"].to_pylist() == [topic.encode()] * 4, topic
        # The files of the refused batch are removed.
        assert self.data_files() == {file["path"] for file in listed_files(table)}

    def test_polars_reads_it(self) -> None:
        topics = ["orders", "a/b c", "snow ☃", "a=b&c%20d"]
        put(self.table, "q", 0, batch(0, 64, topics))
        # polars has other options for its retries.
        options = {k: v for k, v in self.location.options if k.startswith("AWS_")}
        found = polars.read_delta(self.location.url, storage_options=options)
        assert sorted(found["topic"].unique().to_list()) == sorted(topics)

    def test_compaction_removes_only_leftovers_of_its_own(self) -> None:
        fill(self.table, 0, 1, 2, 3)
        (left,) = {file.path for file in write(self.table, "q", 1, batch(0, 16, ["orders"]))}
        (waiting,) = {file.path for file in write(self.table, "q", 9, batch(0, 16, ["orders"]))}
        others = ["notes.parquet", f"backup/{left}", "topic=orders/day=2026-03-01/x.parquet"]
        for name in others:
            self.put_object(name)
        assert self.table.compact() == 4
        assert left in self.data_files()
        with patch.object(delta, "_KEPT_SECONDS", -3600):
            self.table.compact()
        assert left not in self.data_files()
        assert {*others, waiting} <= self.data_files()
        assert self.offsets() == list(range(64))

    def test_tables_below_are_not_cleaned(self) -> None:
        fill(self.table, 0)
        inside = Location.parse(f"{self.location}/topic=inside", self.location.options)
        below = Delta(inside, SCHEMA, ["day"])
        fill(below, 0)
        write(below, "q", 0, batch(0, 16, ["inside"]))
        before = self.data_files()
        with patch.object(delta, "_KEPT_SECONDS", -3600):
            self.table.compact()
        assert self.data_files() == before

    def test_a_kill_anywhere_in_a_batch_or_compaction(self) -> None:
        points: list[Callable[[], Any]] = [
            lambda: patch.object(DeltaTable, "create_write_transaction", dies),
            lambda: patch.object(DeltaTable, "create_write_transaction", self.commit_then_die()),
        ]
        for number, point in enumerate(points):
            with pytest.raises(Died), point():
                fill(self.table, number)
            fill(self.table, number)
            assert self.offsets() == list(range(16 * (number + 1)))
        fill(self.table, 2, 3)
        for point in points:
            with pytest.raises(Died), point():
                self.table.compact()
            assert self.offsets() == list(range(64))
        with patch.object(delta, "_KEPT_SECONDS", -3600):
            self.table.compact()
        removed = removed_paths(self.table.open())
        assert self.data_files() - removed == {
            file["path"] for file in listed_files(self.table.open())
        }

    @staticmethod
    def commit_then_die() -> Callable[..., None]:
        commit = DeltaTable.create_write_transaction

        def interrupted(*arguments: Any, **named: Any) -> None:
            commit(*arguments, **named)
            raise Died

        return interrupted

    def test_of_two_writers_of_one_batch_one_succeeds(self) -> None:
        self.table.create_if_missing()
        files = [write(self.table, "q", 0, batch(0, 16, ["orders"])) for _ in range(2)]
        first = before_commit(lambda: self.table.commit(files[1], "q", 0))
        with first:
            assert not self.table.commit(files[0], "q", 0)
        assert self.offsets() == list(range(16))

    def test_writers_at_the_same_time(self) -> None:
        self.table.create_if_missing()
        together = Barrier(4)

        def write_batches(query: str) -> None:
            table = Delta(self.location, SCHEMA, BY)
            together.wait()
            for number in range(5):
                put(table, query, number, batch(16 * number, 16, ["orders"]))

        threads = [Thread(target=write_batches, args=(f"q{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self.offsets() == sorted([*range(80)] * 4)

    def test_a_merge_that_lost_against_another_adds_nothing(self) -> None:
        fill(self.table, 0, 1, 2, 3)
        with before_commit(lambda: Delta(self.location, SCHEMA, BY).compact()):
            assert self.table.compact() == 0
        assert self.offsets() == list(range(64))

    def test_other_objects_are_refused(self) -> None:
        self.put_object("notes.txt")
        self.put_object("a/b")
        with pytest.raises(ConfigurationError, match=r"other files: 'a', 'notes\.txt'"):
            self.table.create_if_missing()
        assert not DeltaTable.is_deltatable(self.location.url, self.location.storage_options)

    def test_checkpoints_are_permitted(self) -> None:
        self.put_object("_checkpoints/archive/metadata")
        self.put_object("point/offsets/0")
        self.put_object("point/metadata")
        self.table.create_if_missing()

    def test_migration(self) -> None:
        self.table.create_if_missing()
        writer = PartitionWriter(
            self.location, BY, batch=BatchId("q", 0), directory_of=lambda _, values: values[0] or ""
        )
        writer.add(batch(0, 32, ["orders", "trades"]))
        self.table.commit(writer.finish(), "q", 0)
        assert migrate(self.location) == 2
        assert migrate(self.location) == 0
        paths = {file["path"].rpartition("/")[0] for file in listed_files(self.table.open())}
        assert paths == {f"topic={name}/day=2026-03-01" for name in ("orders", "trades")}
        assert self.offsets() == list(range(32))

    def test_the_report_reads_it(self) -> None:
        start = datetime(2026, 3, 1, tzinfo=UTC)
        row = {
            "window_start": start,
            "window_end": start + timedelta(seconds=10),
            "topic": "orders",
            **dict.fromkeys(("messages", "bytes", "age_p99", "late"), 1),
            "day": start.date(),
        }
        rows = pa.RecordBatch.from_pylist([row])
        assert put(Delta(self.location, rows.schema, ["day"]), "q", 0, rows)
        assert load(self.location)["messages"].to_pylist() == [1]
        assert load(self.location, since=start + timedelta(seconds=1)).num_rows == 0

    def test_plain_parquet_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="use --format delta"):
            ParquetFiles(self.location, SCHEMA, BY).create_if_missing()
        assert not open_storage(self.location).exists("")

    def test_a_location_without_a_table(self) -> None:
        with pytest.raises(ConfigurationError, match=f"s3://{BUCKET}/.*: not a Delta table"):
            open_delta(self.location)
        assert self.table.compact() == 0

    def test_the_options_are_not_shown(self) -> None:
        assert SECRET not in repr(self.location)
        assert SECRET not in str(self.location)


class FailingStoreTests(SynchronousTestCase):
    """Errors of a store are one line, and have no secret."""

    def check(self, url: str, *says: str) -> None:
        location = Location.parse(f"s3://{BUCKET}/failing", store_options(url))
        table = Delta(location, SCHEMA, BY)
        calls: list[Callable[[], object]] = [
            table.create_if_missing,
            table.compact,
            lambda: table.commit([], "q", 0),
            lambda: write(table, "q", 0, batch(0, 1)),
            lambda: open_delta(location),
            lambda: migrate(location),
            lambda: load(location),
        ]
        for call in calls:
            with pytest.raises(StorageError) as caught:
                call()
            text = str(caught.value)
            for part in (f"s3://{BUCKET}/failing: the object store fails: ", *says):
                assert part in text
            assert "\n" not in text
            assert SECRET not in text
            assert "\x1b" not in text

    def test_a_refused_connection(self) -> None:
        self.check("http://127.0.0.1:1", "Connection refused")

    def test_wrong_credentials(self) -> None:
        store = ObjectStore("refuse")
        self.addCleanup(store.stop)
        self.check(
            store.url,
            "InvalidAccessKeyId: no such key; check the URL, the network, the credentials",
        )


class IcebergTests(SynchronousTestCase):
    """A table of a catalog whose files are in the store."""

    def setUp(self) -> None:
        self.root = scratch(self)
        options = (
            ("type", "sql"),
            ("uri", f"sqlite:///{self.root}/catalog.db"),
            ("warehouse", f"s3://{BUCKET}/a warehouse/{self.id()}"),
            ("s3.endpoint", object_store().url),
            ("s3.access-key-id", "tests"),
            ("s3.secret-access-key", SECRET),
            ("s3.region", "us-east-1"),
        )
        name = IcebergName("lake.messages", "tests", options)
        self.target = IcebergTarget(name, BY)
        self.table = Iceberg(name, SCHEMA, BY)
        self.table.create_if_missing()

    def write(self, number: int) -> list[WrittenFile]:
        """Write the files of a batch, as a task does."""
        target = pickle.loads(pickle.dumps(self.target.prepared()))
        writer = target.writer(BatchId("q", number))
        writer.add(batch(16 * number, 16, ["orders", "a/b c"]))
        files: list[WrittenFile] = writer.finish()
        return files

    def test_batches_and_a_compaction(self) -> None:
        for number in range(4):
            assert self.table.commit(self.write(number), "q", number)
        assert not self.table.commit(self.write(3), "q", 3)
        self.table.discard(self.write(4), "q")
        storage = IcebergFiles.of(self.table.open()).storage()
        assert len(list(old_files(storage, len(BY), float("inf")))) == 8
        assert self.table.compact() == 8
        with patch.object(iceberg, "_KEPT", timedelta(seconds=-60)):
            self.table.compact()
        assert len(list(old_files(storage, len(BY), float("inf")))) == 2
        assert sorted(self.table.open().scan().to_arrow()["offset"].to_pylist()) == [*range(64)]

    def test_a_file_that_is_not_complete(self) -> None:
        files = IcebergFiles.of(self.table.open())
        assert SECRET not in repr(files)
        check_files(files.storage(), files.url)
