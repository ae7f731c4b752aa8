"""Tables without Spark: files by partition, commits of batches, and compaction."""

from __future__ import annotations

import json
import os
import re
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder
from twisted.trial.unittest import TestCase

from pubsub.durable_names import replace_text
from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables import delta, delta_files
from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.delta_files import (
    listed_files,
    listed_paths,
    removed_paths,
    small_files,
)
from pubsub.pipeline.tables.file_names import (
    BatchId,
    is_merge_of,
    new_merge_file,
    parse_batch_id,
    readable_directory,
)
from pubsub.pipeline.tables.files import PartitionWriter
from pubsub.pipeline.tables.parquet import ParquetFiles
from pubsub.pipeline.tables.storage import Storage
from tests.tables.written_tables import (
    BY,
    SCHEMA,
    TOPICS,
    Died,
    WritableTable,
    all_files,
    batch,
    before_commit,
    dies,
    fill,
    make_old,
    offsets,
    put,
    scratch,
    write,
)


def unlisted(path: str) -> set[str]:
    """Return the data files below ``path`` that the Delta table does not list."""
    listed = {str(Path(uri).relative_to(path)) for uri in DeltaTable(path).file_uris()}
    return {name for name in all_files(path) if name.endswith(".parquet")} - listed


def compact_beside_waiting_batches(table: WritableTable, path: str) -> None:
    """Compact while two old batches of 16 messages are not committed; then commit them."""
    fill(table, 0)
    waiting = write(table, "q", 1, batch(16, 16, ["orders"]))
    other = write(table, "other", 0, batch(32, 16, ["orders"]))
    make_old(path)
    table.compact()
    assert table.commit(waiting, "q", 1)
    assert table.commit(other, "other", 0)


class PartitionWriterTests(TestCase):
    """Files by partition."""

    def setUp(self) -> None:
        self.root = scratch(self)

    def test_each_partition_has_a_file_in_the_order_of_the_rows(self) -> None:
        parts = PartitionWriter(self.root, BY)
        parts.add(batch(0, 100))
        parts.add(batch(100, 60))
        files = parts.finish()
        assert sorted(f.values[0] or "" for f in files) == sorted(TOPICS)
        assert sum(f.rows for f in files) == 160
        for file in files:
            found = ds.dataset(os.path.join(self.root, file.path)).to_table()
            assert found.column_names == [n for n in SCHEMA.names if n not in BY]
            assert {v.decode() for v in found["value"].to_pylist()} == {file.values[0]}
            assert found["offset"].to_pylist() == sorted(found["offset"].to_pylist())
            assert file.size == os.path.getsize(os.path.join(self.root, file.path))

    def test_long_runs_of_one_partition(self) -> None:
        parts = PartitionWriter(self.root, BY)
        runs = [(0, "orders"), (300, "bills"), (450, "orders"), (700, "a"), (1000, "")]
        for (start, topic), (stop, _) in pairwise(runs):
            parts.add(batch(start, stop - start, [topic]))
        joined = [batch(start, stop - start, [t]) for (start, t), (stop, _) in pairwise(runs)]
        parts.add(pa.Table.from_batches(joined).combine_chunks().to_batches()[0])
        found = {file.values[0]: file for file in parts.finish()}
        assert {name: file.rows for name, file in found.items()} == {
            "orders": 1100, "bills": 300, "a": 600,
        }  # fmt: skip
        rows = ds.dataset(os.path.join(self.root, found["orders"].path)).to_table()
        assert rows["offset"].to_pylist() == 2 * [*range(300), *range(450, 700)]
        assert set(rows["value"].to_pylist()) == {b"orders"}

    def test_held_bytes_are_limited(self) -> None:
        parts = PartitionWriter(self.root, BY, max_held=1)
        parts.add(batch(0, 64))
        assert len(list(Path(self.root).rglob("*.parquet"))) == len(TOPICS)
        parts.add(batch(64, 64))
        assert sum(f.rows for f in parts.finish()) == 128

    def test_rows_of_a_rare_partition_do_not_hold_the_memory_of_others(self) -> None:
        most = 2**20
        parts = PartitionWriter(self.root, BY, max_held=most)
        before = pa.total_allocated_bytes()
        for number in range(50):
            rows = pa.Table.from_batches(
                [batch(2000 * number, 1999, ["orders"]), batch(2000 * number + 1999, 1, ["rare"])]
            )
            parts.add(rows.combine_chunks().to_batches()[0])
            assert pa.total_allocated_bytes() - before < 4 * most
        files = parts.finish()
        (rare,) = [file for file in files if file.values[0] == "rare"]
        found = ds.dataset(os.path.join(self.root, rare.path)).to_table()
        assert found["offset"].to_pylist() == [2000 * number + 1999 for number in range(50)]
        assert sum(file.rows for file in files) == 100_000

    def test_large_rows_of_a_partition_with_few_are_counted(self) -> None:
        most = 2**20
        parts = PartitionWriter(self.root, BY, max_held=most)
        before = pa.total_allocated_bytes()
        for number in range(50):
            large = batch(2000 * number, 1, ["rare"])
            value = large.schema.get_field_index("value")
            large = large.set_column(value, "value", pa.array([bytes(200_000)], pa.binary()))
            small = batch(2000 * number + 1, 1999, ["orders"])
            parts.add(pa.Table.from_batches([large, small]).combine_chunks().to_batches()[0])
            assert pa.total_allocated_bytes() - before < 4 * most
        assert sum(file.rows for file in parts.finish()) == 100_000

    def test_statistics_enclose_the_values(self) -> None:
        parts = PartitionWriter(self.root, BY)
        parts.add(batch(5, 3, ["orders"]))
        (file,) = parts.finish()
        assert (file.low["offset"], file.high["offset"]) == (5, 7)
        assert file.low["timestamp"] == "2026-03-01T12:00:00.005Z"
        # 7.007 ms, rounded up; otherwise a reader would skip the file.
        assert file.high["timestamp"] == "2026-03-01T12:00:00.008Z"
        assert file.nulls["offset"] == 0
        assert "value" not in file.low

    def test_directories_are_safe_and_short_and_differ(self) -> None:
        found = [readable_directory(BY, (topic, "2026-03-01")) for topic in TOPICS]
        assert len(set(found)) == len(TOPICS)
        for path in found:
            assert re.search(r"\A[A-Za-z0-9_+-]{1,150}/2026-03-01\Z", path)

    def test_an_empty_batch_makes_no_file(self) -> None:
        parts = PartitionWriter(self.root, BY)
        parts.add(batch(0, 0))
        assert parts.finish() == []

    def test_without_partition_columns_there_is_one_partition(self) -> None:
        parts = PartitionWriter(self.root, ())
        parts.add(batch(0, 32))
        (file,) = parts.finish()
        assert (file.values, file.rows) == ((), 32)
        assert "/" not in file.path


class CommitTests(TestCase):
    """Both kinds of table accept a batch of a query once."""

    def setUp(self) -> None:
        self.path = scratch(self)

    def test_delta_stores_a_batch_once(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        assert put(table, "q", 0, batch(0, 32))
        assert put(table, "q", 1, batch(32, 32))
        assert not put(table, "q", 1, batch(32, 32))
        assert not put(table, "q", 0, batch(0, 32))
        assert offsets(self.path) == list(range(64))
        # The files of the refused batches are removed.
        listed = len(DeltaTable(self.path).file_uris())
        assert len(list(Path(self.path).rglob("*.parquet"))) == listed

    def test_of_two_writers_of_one_batch_one_succeeds(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        table.create_if_missing()
        first, second = (write(table, "q", 0, batch(0, 16)) for _ in range(2))
        with before_commit(lambda: table.commit(second, "q", 0)):
            assert not table.commit(first, "q", 0)
        assert offsets(self.path) == list(range(16))
        assert not unlisted(self.path)

    def test_queries_are_distinguished(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        put(table, "q", 3, batch(0, 5))
        assert put(table, "other", 3, batch(5, 5))
        assert offsets(self.path) == list(range(10))

    def test_unusual_topics_can_be_queried(self) -> None:
        put(Delta(self.path, SCHEMA, BY), "q", 0, batch(0, 64))
        for topic in TOPICS:
            found = DeltaTable(self.path).to_pyarrow_table(filters=[("topic", "=", topic)])
            assert found.num_rows == 4, topic

    def test_other_readers_find_the_files(self) -> None:
        put(Delta(self.path, SCHEMA, BY), "q", 0, batch(0, 64))
        # deltalake's own engine uses URLs, like readers of object stores.
        engine = QueryBuilder().register("t", DeltaTable(self.path))
        found = pa.table(engine.execute("SELECT topic, count(*) AS n FROM t GROUP BY topic"))
        assert dict(
            zip(found["topic"].to_pylist(), found["n"].to_pylist(), strict=True)
        ) == dict.fromkeys(TOPICS, 4)

    def test_another_layout_is_refused(self) -> None:
        put(Delta(self.path, SCHEMA, BY), "q", 0, batch(0, 3))
        with pytest.raises(ConfigurationError, match="partitioned by topic, day, not by day"):
            put(Delta(self.path, SCHEMA, ("day",)), "q", 1, batch(3, 3))
        other = SCHEMA.append(pa.field("more", pa.int32()))
        with pytest.raises(ConfigurationError, match="column more must be int32, but the table"):
            Delta(self.path, other, BY).commit([], "q", 1)

    def test_parquet_stores_a_batch_once(self) -> None:
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

    def test_parquet_syncs_the_names_of_moved_files(self) -> None:
        table = ParquetFiles(self.path, SCHEMA, BY)
        table.create_if_missing()
        files = write(table, "q", 0, batch(0, 4, ["orders"]))
        (file,) = files
        final = os.path.realpath(os.path.join(self.path, file.path))
        synced = []
        fsync = os.fsync

        def note(descriptor: int) -> None:
            synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.path.exists(final)))
            fsync(descriptor)

        with patch("os.fsync", note):
            assert table.commit(files, "q", 0)
        day = os.path.dirname(final)
        assert [path for path, moved in synced if moved] == [day]
        made = {path for path, _ in synced}
        assert {os.path.dirname(day), os.path.realpath(self.path)} <= made

    def test_parquet_recovers_from_a_kill_anywhere_in_a_commit(self) -> None:
        moves = 0

        def dying(_source: str, _target: str) -> None:
            nonlocal moves
            if moves == 0:
                raise Died
            moves -= 1
            os.rename(_source, _target)

        # Before the rename of the commit, after it, and after some of the renames of files.
        for batch_number, survived in enumerate(range(len(TOPICS) + 1)):
            moves = survived
            table = ParquetFiles(self.path, SCHEMA, BY)
            with pytest.raises(Died), self.patched(dying):
                put(table, "q", batch_number, batch(16 * batch_number, 16))
            # The query runs its batch again, and the table accepts it once.
            put(table, "q", batch_number, batch(16 * batch_number, 16))
            self.check_parquet(16 * (batch_number + 1))

    def patched(self, replacement: object) -> AbstractContextManager[object]:
        return patch("pubsub.pipeline.tables.parquet.os.replace", replacement)


class CompactionTests(TestCase):
    """Compaction merges small files and changes no row."""

    def setUp(self) -> None:
        self.path = scratch(self)

    def test_small_files_are_merged_in_order(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        # Committed out of order, as tasks can be.
        for number, first in enumerate((64, 0, 128, 32, 96)):
            put(table, "q", number, batch(first, 32))
        before = len(DeltaTable(self.path).file_uris())
        assert table.compact() == before
        assert len(DeltaTable(self.path).file_uris()) == len(TOPICS)
        assert offsets(self.path) == list(range(160))
        one = DeltaTable(self.path).to_pyarrow_table(filters=[("topic", "=", "..")])
        assert one["offset"].to_pylist() == sorted(one["offset"].to_pylist())
        # The table remembers the query after compaction, and nothing is left to merge.
        assert not put(table, "q", 4, batch(96, 32))
        assert table.compact() == 0

    def test_a_merge_is_no_change_of_the_data(self) -> None:
        """Otherwise a query of Spark that reads the table as a stream would end with an error."""
        table = Delta(self.path, SCHEMA, BY)
        fill(table, *range(4))
        table.compact()
        logs = sorted(Path(self.path, "_delta_log").glob("*.json"))
        actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        changes = [
            (kind, action[kind]["dataChange"])
            for action in actions
            for kind in ("add", "remove")
            if kind in action
        ]
        assert changes[:4] == [("add", True)] * 4
        assert sorted(changes[4:]) == [("add", False)] + [("remove", False)] * 4
        removed = [action["remove"] for action in actions if "remove" in action]
        partition = {"topic": "orders", "day": "2026-03-01"}
        assert all(one["partitionValues"] == partition and one["size"] > 0 for one in removed)

    def test_large_files_are_not_written_again(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        put(table, "q", 0, batch(0, 2000, ["orders"]))
        fill(table, *range(130, 134))
        (large, *_) = sorted(listed_files(table.open()), key=lambda file: -file["size_bytes"])
        for _ in range(2):
            with patch.object(delta_files, "FULL_FILE_BYTES", large["size_bytes"]):
                table.compact()
            assert large["path"] in listed_paths(table.open())
            assert len(listed_paths(table.open())) == 2
        with patch.object(delta_files, "FULL_FILE_BYTES", large["size_bytes"] + 1):
            fill(table, 134, 135)
            assert table.compact() == 4

    def test_earlier_versions_remain_readable(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        for number in range(5):
            put(table, "q", number, batch(16 * number, 16))
        version = DeltaTable(self.path).version()
        table.compact()
        old = DeltaTable(self.path, version).to_pyarrow_table()
        assert sorted(old["offset"].to_pylist()) == list(range(80))

    def test_compaction_without_a_table_does_nothing(self) -> None:
        assert Delta(self.path, SCHEMA, BY).compact() == 0
        assert not os.path.exists(self.path)

    def test_checkpoints_in_the_directory_stay(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        put(table, "q", 0, batch(0, 3))
        all_files = Path(self.path, "_checkpoints", "archive", "offsets", "0")
        all_files.parent.mkdir(parents=True)
        all_files.write_text(json.dumps({}))
        os.utime(all_files, (0, 0))
        table.compact()
        assert all_files.exists()

    def test_files_of_other_programs_stay(self) -> None:
        table = Delta(self.path, SCHEMA, BY)
        put(table, "q", 0, batch(0, 3))
        (partition, *_) = [one for one in Path(self.path).iterdir() if one.name[0] != "_"]
        others = [Path(self.path, "other.parquet"), partition / "other.parquet"]
        for path in others:
            path.write_bytes(b"other")
            os.utime(path, (0, 0))
        table.compact()
        assert [path.read_bytes() for path in others] == [b"other"] * 2


class NameTests(TestCase):
    """The writer in the name of a file."""

    def test_a_name_has_its_batch(self) -> None:
        for query in ("q", "a-7", "x/../y", "_é🦊", "3f0c1d5e-late"):
            for place in ("", "orders", "orders/2026-03-01"):
                path = BatchId(query, 12).new_file(place)
                assert parse_batch_id(path) == BatchId(query, 12)
                assert not is_merge_of(path, [path])
                assert path.rpartition("/")[0] == place
                assert len(os.path.basename(path)) < 255

    def test_a_name_has_the_source_of_a_merge(self) -> None:
        path = new_merge_file("orders", "orders/a.parquet")
        assert is_merge_of(path, ["orders/b.parquet", "orders/a.parquet"])
        assert not is_merge_of(path, ["orders/b.parquet", "a.parquet", path])
        assert parse_batch_id(path) is None

    def test_moved_and_foreign_files_have_no_batch(self) -> None:
        path = BatchId("q", 0).new_file("orders/2026-03-01")
        name = os.path.basename(path)
        for other in (
            name,
            f"orders/{name}",
            f"sub/{path}",
            f"orders/2026-03-02/{name}",
            path.replace("-0-", "-1-"),
            path.removesuffix(".parquet"),
            f"{path}.parquet",
            "orders/2026-03-01/pubsub-batch-q-0.parquet",
            f"orders/2026-03-01/{'a' * 32}.parquet",
        ):
            assert parse_batch_id(other) is None, other

    def test_a_shortened_query_has_no_batch(self) -> None:
        assert parse_batch_id(BatchId("q" * 500, 0).new_file("orders")) is None


class AdmissionTests(TestCase):
    """A table is created in a new or empty directory only."""

    def setUp(self) -> None:
        self.path = scratch(self)

    def refuse(self, kind: type[Delta] | type[ParquetFiles], *says: str) -> None:
        """Check that a table is refused with these words, and that nothing changes."""
        before = all_files(self.path)
        directories = {root for root, _, _ in os.walk(self.path)}
        with pytest.raises(ConfigurationError) as caught:
            kind.check_directory(self.path)
        with pytest.raises(ConfigurationError):
            put(kind(self.path, SCHEMA, BY), "q", 0, batch(0, 16))
        for text in (self.path, *says, "choose a"):
            assert text in str(caught.value)
        assert "\n" not in str(caught.value)
        assert all_files(self.path) == before
        assert {root for root, _, _ in os.walk(self.path)} == directories

    def test_a_directory_with_other_files(self) -> None:
        os.mkdir(self.path)
        for name in ("notes.txt", "a\nb", "c", "d"):
            Path(self.path, name).touch()
        for kind in (Delta, ParquetFiles):
            self.refuse(kind, "has other files: 'a\\nb', 'c', 'd' and 1 more")

    def test_a_directory_with_an_empty_directory(self) -> None:
        os.makedirs(os.path.join(self.path, "orders"))
        self.refuse(Delta, "'orders'")

    def test_a_directory_with_a_table_below(self) -> None:
        put(Delta(os.path.join(self.path, "sub"), SCHEMA, BY), "q", 0, batch(0, 16))
        self.refuse(Delta, "'sub'")

    def test_a_table_of_the_other_kind(self) -> None:
        put(Delta(self.path, SCHEMA, BY), "q", 0, batch(0, 16))
        self.refuse(ParquetFiles, "has a Delta table", "or the format of that table")
        rmtree(self.path)
        put(ParquetFiles(self.path, SCHEMA, BY), "q", 0, batch(0, 16))
        self.refuse(Delta, "has a table of Parquet files")

    def test_a_path_that_is_not_a_directory(self) -> None:
        Path(self.path).touch()
        for kind in (Delta, ParquetFiles):
            with pytest.raises(ConfigurationError, match="not a directory"):
                kind.check_directory(self.path)

    def test_an_unreadable_table(self) -> None:
        log = Path(self.path, "_delta_log")
        log.mkdir(parents=True)
        (log / f"{3:020}.json").write_text("{}")
        with pytest.raises(ConfigurationError, match=r"cannot read the table: .*No table"):
            Delta(self.path, SCHEMA, BY).create_if_missing()

    def test_another_table_is_refused_before_files_are_written(self) -> None:
        DeltaTable.create(self.path, pa.schema([("name", pa.string())]))
        before = all_files(self.path)
        with pytest.raises(ConfigurationError, match=r"partitioned by nothing.*choose another"):
            put(Delta(self.path, SCHEMA, BY), "q", 0, batch(0, 16))
        assert all_files(self.path) == before

    def test_a_directory_that_cannot_be_created(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^/proc/x: .*: No such file or directory$"):
            Delta("/proc/x", SCHEMA, BY).create_if_missing()

    def test_unsupported_columns(self) -> None:
        schema = pa.schema([("length", pa.duration("us"))])
        with pytest.raises(ConfigurationError, match=r"cannot create the table: .*Duration"):
            Delta(self.path, schema, ()).create_if_missing()

    def test_remains_of_a_job_killed_at_once(self) -> None:
        for kind, own in ((Delta, "_delta_log"), (ParquetFiles, "_staging")):
            os.makedirs(os.path.join(self.path, own))
            for home in ("_checkpoints/archive", "mine/metrics"):
                checkpoint = Path(self.path, home)
                (checkpoint / "offsets").mkdir(parents=True)
                (checkpoint / "metadata").touch()
            assert put(kind(self.path, SCHEMA, BY), "q", 0, batch(0, 16))
            assert Path(self.path, "mine/metrics/metadata").exists()
            rmtree(self.path)


class CleaningTests(TestCase):
    """Compaction of a Delta table removes only its own files that can never be committed."""

    def setUp(self) -> None:
        self.path = scratch(self)
        self.table = Delta(self.path, SCHEMA, BY)

    def leave(self, query: str, number: int) -> set[str]:
        """Write the files that a killed writer of a batch leaves, and return them."""
        self.table.create_if_missing()
        return {file.path for file in write(self.table, query, number, batch(0, 16, ["orders"]))}

    def test_files_of_others_stay(self) -> None:
        fill(self.table, 0, 1)
        (own,) = self.leave("q", 0)
        root = Path(self.path)
        others = [
            "notes.txt",
            "x.parquet",
            f"orders/2026-03-01/{'a' * 32}.parquet",
            "orders/2026-03-01/notes.txt",
            "mine/2026-03-01/data.parquet",
            "check/point/offsets/0",
            "_checkpoints/archive/offsets/0",
            # Copies of the table's own files.
            f"backup/{own}",
            f"backup/2026-03-01/{os.path.basename(own)}",
            os.path.basename(own),
        ]
        for name in others:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("mine")
        make_old(root)
        self.table.compact()
        assert set(others) <= all_files(root)
        assert own not in all_files(root)
        assert offsets(self.path) == list(range(32))

    def test_tables_below_are_not_cleaned(self) -> None:
        fill(self.table, 0, 1)
        below = Delta(os.path.join(self.path, "sub"), SCHEMA, BY)
        plain = ParquetFiles(os.path.join(self.path, "plain"), SCHEMA, BY)
        # A table in a directory that is also the directory of a partition.
        inside = Delta(os.path.join(self.path, "topic=inside"), SCHEMA, ["day"])
        for table in (below, plain, inside):
            # The same query, as with the same checkpoint.
            fill(table, 0)
            write(table, "q", 0, batch(0, 16, ["orders"]))
        leftovers = write(self.table, "q", 0, batch(0, 16, ["inside"]))
        make_old(self.path)
        before = all_files(self.path)
        self.table.compact()
        assert all_files(self.path) == before
        assert {file.path for file in leftovers} <= before
        assert offsets(below.path) == offsets(inside.path) == list(range(16))
        # Each table removes only its own leftovers.
        inside.compact()
        below.compact()
        assert unlisted(below.path) == set()
        assert offsets(below.path) == offsets(inside.path) == list(range(16))
        assert offsets(self.path) == list(range(32))

    def test_links_are_not_followed(self) -> None:
        fill(self.table, 0)
        outside = Path(self.path).with_name("outside")
        outside.mkdir()
        name = BatchId("q", 0).new_file("linked/2026-03-01")
        (outside / os.path.basename(name)).touch()
        os.mkdir(os.path.join(self.path, "linked"))
        os.symlink(outside, os.path.join(self.path, "linked", "2026-03-01"))
        link = BatchId("q", 0).new_file("topic=orders/day=2026-03-01")
        os.symlink(outside / os.path.basename(name), os.path.join(self.path, link))
        make_old(outside)
        make_old(self.path)
        self.table.compact()
        assert all_files(outside) == {os.path.basename(name)}
        assert os.path.islink(os.path.join(self.path, link))

    def test_old_leftovers_of_finished_batches_are_removed(self) -> None:
        left = self.leave("q", 1)
        fill(self.table, 0, 1)
        self.table.compact()
        assert unlisted(self.path) == left
        make_old(self.path)
        self.table.compact()
        assert unlisted(self.path) == set()
        assert offsets(self.path) == list(range(32))

    def test_uncommitted_batches_stay_at_any_age(self) -> None:
        compact_beside_waiting_batches(self.table, self.path)
        assert offsets(self.path) == list(range(48))

    def test_files_of_older_versions_of_this_package_stay(self) -> None:
        old = PartitionWriter(self.path, BY)
        old.add(batch(0, 16, ["orders"]))
        self.table.create_if_missing()
        self.table.commit(old.finish(), "q", 0)
        left = PartitionWriter(self.path, BY)
        left.add(batch(0, 16, ["orders"]))
        (file,) = left.finish()
        make_old(self.path)
        self.table.compact()
        assert unlisted(self.path) == {file.path}
        assert offsets(self.path) == list(range(16))

    def test_replaced_files_are_removed_after_a_week(self) -> None:
        fill(self.table, 0, 1, 2, 3)
        version = DeltaTable(self.path).version()
        before_a_week = delta._milliseconds() - 8 * 86_400_000
        with patch.object(delta, "_milliseconds", lambda: before_a_week):
            assert self.table.compact() == 4
        assert unlisted(self.path) == set()
        assert offsets(self.path) == list(range(64))
        with pytest.raises(FileNotFoundError):
            DeltaTable(self.path, version).to_pyarrow_table()

    def test_replaced_files_stay_for_a_week_at_any_age(self) -> None:
        fill(self.table, 0, 1, 2, 3)
        version = DeltaTable(self.path).version()
        make_old(self.path)
        assert self.table.compact() == 4
        make_old(self.path)
        self.table.compact()
        assert len(unlisted(self.path)) == 4
        assert DeltaTable(self.path, version).to_pyarrow_table().num_rows == 64

    def test_a_longer_retention_of_the_table_applies(self) -> None:
        fill(self.table, 0, 1, 2, 3)
        longer = {"delta.deletedFileRetentionDuration": "interval 30 days"}
        DeltaTable(self.path).alter.set_table_properties(longer)
        before_a_week = delta._milliseconds() - 8 * 86_400_000
        with patch.object(delta, "_milliseconds", lambda: before_a_week):
            assert self.table.compact() == 4
        assert len(unlisted(self.path)) == 4

    def test_a_kill_anywhere_in_compaction(self) -> None:
        def write_partial_file(storage: Storage, path: str, *_: object) -> None:
            with storage.create(path) as file:
                file.write(b"PAR1")
            raise Died

        commit = DeltaTable.create_write_transaction

        def commit_then_die(*arguments: Any, **named: Any) -> None:
            commit(*arguments, **named)
            raise Died

        kill_points: list[AbstractContextManager[object]] = [
            patch.object(delta, "write_file", write_partial_file),
            patch.object(DeltaTable, "create_write_transaction", dies),
            patch.object(DeltaTable, "create_write_transaction", commit_then_die),
            patch.object(DeltaTable, "vacuum", dies),
            patch("pubsub.pipeline.tables.storage.os.unlink", dies),
        ]
        count = 0
        for kill_point in kill_points:
            fill(self.table, *range(count, count + 4))
            count += 4
            # A leftover to remove at the end.
            self.leave("q", 0)
            make_old(self.path)
            with pytest.raises(Died), kill_point:
                self.table.compact()
            assert offsets(self.path) == list(range(16 * count))
            self.table.compact()
            assert offsets(self.path) == list(range(16 * count))
        make_old(self.path)
        self.table.compact()
        # The remaining files were replaced, and stay for readers of older versions.
        assert unlisted(self.path) == removed_paths(DeltaTable(self.path))
        assert offsets(self.path) == list(range(16 * count))

    def test_a_merge_in_progress_stays_at_any_age(self) -> None:
        fill(self.table, 0, 1, 2, 3)

        def clean_old_files() -> None:
            make_old(self.path)
            self.table._clean()

        with before_commit(clean_old_files):
            assert self.table.compact() == 4
        assert offsets(self.path) == list(range(64))

    def test_one_of_two_concurrent_merges_succeeds(self) -> None:
        fill(self.table, 0, 1, 2, 3)
        small = small_files

        def seen_by_both(*arguments: Any) -> Any:
            found = small(*arguments)
            with patch.object(delta, "small_files", small):
                assert self.table.compact() == 4
            return found

        with patch.object(delta, "small_files", seen_by_both):
            assert self.table.compact() == 0
        assert offsets(self.path) == list(range(64))

        fill(self.table, 4, 5, 6, 7)

        def merge() -> None:
            assert self.table.compact() == 5

        with before_commit(merge):
            assert self.table.compact() == 0
        assert offsets(self.path) == list(range(128))

    def test_concurrent_batches_do_not_prevent_a_merge(self) -> None:
        fill(self.table, 0, 1, 2, 3)
        waiting = [4, 5]

        def write_another() -> None:
            if waiting:
                fill(self.table, waiting.pop())

        with before_commit(write_another):
            assert self.table.compact() == 4
        assert waiting == []

    def test_a_repeated_commit_keeps_its_files(self) -> None:
        self.table.create_if_missing()
        files = write(self.table, "q", 0, batch(0, 16, ["orders"]))
        assert self.table.commit(files, "q", 0)
        assert not self.table.commit(files, "q", 0)
        self.table.discard(files, "q")
        assert offsets(self.path) == list(range(16))


class StagingTests(TestCase):
    """Compaction of Parquet files removes staged files that will never be committed."""

    def setUp(self) -> None:
        self.path = scratch(self)
        self.table = ParquetFiles(self.path, SCHEMA, BY)
        self.staging = Path(self.path, "_staging")

    def check(self, count: int) -> None:
        """Check that every row is there once."""
        found = ds.dataset(self.path).to_table()["offset"].to_pylist()
        assert sorted(found) == list(range(count))

    def test_uncommitted_batches_stay_at_any_age(self) -> None:
        compact_beside_waiting_batches(self.table, self.path)
        self.check(48)

    def test_a_commit_that_was_killed_keeps_its_files(self) -> None:
        fill(self.table, 0)
        files = write(self.table, "q", 1, batch(16, 64))
        moved = 0

        def dying(source: str, target: str) -> None:
            nonlocal moved
            os.rename(source, target)
            moved += 1
            if moved == 4:
                raise Died

        with pytest.raises(Died), patch("pubsub.pipeline.tables.parquet.os.replace", dying):
            self.table.commit(files, "q", 1)
        make_old(self.path)
        # The compaction of another query, and Spark's reaction to a failed commit.
        self.table.compact()
        self.table.discard(files, "q")
        assert not put(self.table, "q", 1, batch(16, 64))
        self.check(80)
        assert all_files(self.staging) == set()

    def test_names_of_a_commit_that_was_killed_are_on_disk_before_the_next_one(self) -> None:
        """A loss of power could put the files back, and no list would have them."""
        self.table.create_if_missing()
        files = write(self.table, "q", 0, batch(0, 64))
        synced = "pubsub.pipeline.tables.parquet.sync_names"
        with pytest.raises(Died), patch(synced, side_effect=Died):
            self.table.commit(files, "q", 0)
        steps: list[Path] = []

        def replaced(path: Path, text: str) -> None:
            steps.append(path)
            replace_text(path, text)

        with (
            patch(synced, steps.append),
            patch("pubsub.pipeline.tables.parquet.replace_text", replaced),
        ):
            assert put(self.table, "q", 1, batch(64, 16))
        (listed,) = (at for at, path in enumerate(steps) if path.suffix == ".json")
        assert {Path(self.path, file.path).parent for file in files} <= {*steps[:listed]}
        self.check(80)

    def test_old_leftovers_of_finished_batches_are_removed(self) -> None:
        self.table.create_if_missing()
        left = {file.path for file in write(self.table, "q", 1, batch(0, 32))}
        fill(self.table, 0, 1)
        self.table.compact()
        assert all_files(self.staging) == left
        make_old(self.path)
        self.table.compact()
        assert all_files(self.staging) == set()
        self.check(32)

    def test_files_of_others_stay(self) -> None:
        fill(self.table, 0)
        (left,) = (file.path for file in write(self.table, "q", 0, batch(0, 16, ["orders"])))
        outside = Path(self.path).with_name("outside")
        outside.mkdir()
        name = os.path.basename(BatchId("q", 0).new_file("linked/2026-03-01"))
        (outside / name).touch()
        (self.staging / "linked").mkdir()
        os.symlink(outside, self.staging / "linked" / "2026-03-01")
        others = [
            "notes.parquet",
            f"orders/2026-03-01/{'a' * 32}.parquet",
            f"backup/{left}",
            f"backup/2026-03-01/{os.path.basename(left)}",
        ]
        for other in others:
            (self.staging / other).parent.mkdir(parents=True, exist_ok=True)
            (self.staging / other).touch()
        below = ParquetFiles(str(self.staging / "sub"), SCHEMA, BY)
        fill(below, 0)
        write(below, "q", 0, batch(0, 16))
        make_old(outside)
        make_old(self.path)
        before = all_files(self.path)
        self.table.compact()
        assert before - all_files(self.path) == {f"_staging/{left}"}
        assert all_files(outside) == {name}
