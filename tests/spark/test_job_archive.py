"""The job archive on histories in directories."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import copytree
from types import ModuleType
from unittest.mock import patch

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pubsub.errors import ConfigurationError
from pubsub.pipeline.job_runs.checkpoint_lock import checkpoint_lock
from pubsub.pipeline.jobs import archive, derive, metrics
from pubsub.pipeline.jobs.archive import save
from pubsub.pipeline.tables.file_names import BatchId
from pubsub.pipeline.tables.spark import TableTarget
from tests.spark import job_once
from tests.spark.archive_runs import put, run
from tests.spark.messages import MESSAGES, Feed, table_rows


def offsets(path: Path) -> list[int]:
    """Return the offsets in the table."""
    return sorted(row["offset"] for row in table_rows(path))


def test_every_message_is_there_once_over_restarts(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, to = tmp_path / "history", tmp_path / "archive"
    for _ in range(3):
        put(file, "t/0", "t/1", "t/2")
        assert run(spark, file, to) == 0
    assert offsets(to) == list(range(30))
    table = DeltaTable(str(to))
    assert table.metadata().partition_columns == ["topic", "day"]
    assert {row["topic"] for row in table.partitions()} == {"t/0", "t/1", "t/2"}
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(step["batch"], step["rows"]) for step in steps] == [(0, 10), (1, 10), (2, 10)]


def test_a_death_between_append_and_commit_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, to = tmp_path / "history", tmp_path / "archive"
    put(file, "orders")

    class Died(Exception):
        pass

    def dying(
        df: DataFrame, target: TableTarget, headers: bool, query: str, batch: int, *more: bool
    ) -> int:
        save(df, target, headers, query, batch, *more)
        raise Died

    with patch.object(archive, "save", dying), pytest.raises(Exception, match="Died"):
        run(spark, file, to)
    assert offsets(to) == list(range(10))
    put(file, "orders")
    assert run(spark, file, to) == 0
    assert offsets(to) == list(range(20))


def test_a_copied_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    file, to = tmp_path / "history", tmp_path / "archive"
    copies = [tmp_path / "copy-0", tmp_path / "copy-1"]
    put(file, "orders")
    assert run(spark, file, to) == 0
    copytree(to / "_checkpoints" / "archive", copies[0])
    copytree(copies[0], copies[1])
    put(file, "orders")
    assert run(spark, file, to) == 0
    put(file, "orders")
    # Its batch 1 has the messages of the second batch, and of the third.
    with pytest.raises(Exception, match=r"has batch 1 of this query with 10 rows, but now .* 20: "):
        run(spark, file, to, "--checkpoint", str(copies[0]))
    assert run(spark, file, to) == 0
    with pytest.raises(Exception, match="has batch 2 of this query, but the checkpoint is at ba"):
        run(spark, file, to, "--checkpoint", str(copies[1]))
    assert offsets(to) == list(range(30))


def test_a_second_job_with_a_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    file, to = tmp_path / "history", tmp_path / "archive"
    put(file, "orders")
    assert run(spark, file, to) == 0
    with (
        checkpoint_lock(str(to / "_checkpoints" / "archive")),
        pytest.raises(ConfigurationError, match="_checkpoints/archive: another job uses this"),
    ):
        run(spark, file, to)
    assert run(spark, file, to) == 0


def test_plain_parquet(spark: SparkSession, tmp_path: Path) -> None:
    file, to = tmp_path / "history", tmp_path / "archive"
    for _ in range(2):
        put(file, "..", "a/../b")
        run(spark, file, to, "--format", "parquet")
    found = ds.dataset(str(to)).to_table()
    assert sorted(found["offset"].to_pylist()) == list(range(20))
    assert set(found["topic"].to_pylist()) == {"a/../b", ".."}
    reader = spark.read.option("recursiveFileLookup", "true")
    assert reader.parquet(str(to)).where("topic = '..'").count() == 10


def test_the_end_of_once_compacts(spark: SparkSession, tmp_path: Path) -> None:
    file, to = tmp_path / "history", tmp_path / "archive"
    for _ in range(6):
        put(file, "orders")
    run(spark, file, to, "--partition-by", "day", "--compact-every", "2", "--max-rows", "10")
    # Compaction does not merge three files.
    assert len(DeltaTable(str(to)).file_uris()) <= 3
    assert offsets(to) == list(range(60))


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_compaction_leaves_the_files_of_others(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    file, to = tmp_path / "history", tmp_path / "archive"
    sub, point = to / "sub", to / "point"
    given = ("--format", kind, "--checkpoint", str(point))
    for _ in range(2):
        put(file, "orders")
        assert run(spark, file, to, *given) == 0
    # From the same query, as the checkpoint is the same.
    put(file, "orders")
    assert run(spark, file, sub, *given) == 0
    query = json.loads((point / "metadata").read_text())["id"]
    outside = tmp_path / "outside"
    own = to / ("_staging" if kind == "parquet" else "")
    others = [
        # From a later batch, which may be in progress.
        own / BatchId(query, 99).new_file("orders/2023-11-14"),
        to / "notes.txt",
        to / "orders" / "more.parquet",
        sub / BatchId(query, 0).new_file("orders/2023-11-14"),
        outside / os.path.basename(BatchId(query, 0).new_file("linked/2023-11-14")),
    ]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("mine")
    left = own / BatchId(query, 0).new_file("orders/2023-11-14")
    left.touch()
    (own / "linked").mkdir()
    (own / "linked" / "2023-11-14").symlink_to(outside)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for path in before:
        os.utime(path, (0, 0))

    put(file, "orders")
    assert run(spark, file, to, *given) == 0
    # Spark itself changes its checkpoint.
    assert {path for path in before if not path.is_relative_to(point) and not path.exists()} == {
        left
    }
    assert all(other.read_text() == "mine" for other in others)
    if kind == "delta":
        assert offsets(to) == [*range(20), *range(30, 40)]
        assert offsets(sub) == list(range(20, 30))


@pytest.mark.parametrize("job", [archive, derive, metrics])
def test_a_directory_with_other_files_is_refused(
    spark: SparkSession, tmp_path: Path, job: ModuleType
) -> None:
    notes = tmp_path / "to" / "notes.txt"
    notes.parent.mkdir()
    notes.touch()
    sql = tmp_path / "query.sql"
    sql.write_text("SELECT topic FROM messages")
    feed = Feed(spark, tmp_path / "feed", MESSAGES)
    given = {
        archive: ("--to", notes.parent),
        derive: ("--to", f"table:{notes.parent}", "--sql", sql),
        metrics: ("--to", notes.parent),
    }
    with pytest.raises(ConfigurationError, match=r"other files: 'notes\.txt'; choose a new"):
        job_once.run(job, spark, feed.stream, *given[job])
    assert list(notes.parent.iterdir()) == [notes]
