"""The job archive on history files."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from unittest.mock import patch

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pubsub.pipeline.jobs import archive
from pubsub.pipeline.jobs.archive import save
from pubsub.pipeline.tables.spark import Target
from tests.histories import history
from tests.spark.job_once import options
from tests.spark.messages import table_rows


def put(path: Path, *topics: str) -> None:
    """Ten messages more, on these topics in turn."""
    with history(path) as file:
        file.put_all(
            file.batch(topics[number % len(topics)], [b"%d" % number]) for number in range(10)
        )


def run(spark: SparkSession, path: Path, to: Path, *more: str) -> int:
    """Run the job once; the exit code."""
    given = options("archive", "--path", path, "--to", to, "--once", *more)
    return archive.run(spark, given, threading.Event())


def offsets(path: Path) -> list[int]:
    """The offsets in the table."""
    return sorted(row["offset"] for row in table_rows(path))


def test_every_message_is_there_once_over_restarts(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, to = tmp_path / "history.db", tmp_path / "archive"
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
    file, to = tmp_path / "history.db", tmp_path / "archive"
    put(file, "orders")

    class Died(Exception):
        pass

    def dying(df: DataFrame, target: Target, headers: bool, query: str, batch: int) -> int:
        save(df, target, headers, query, batch)
        raise Died

    with patch.object(archive, "save", dying), pytest.raises(Exception, match="Died"):
        run(spark, file, to)
    assert offsets(to) == list(range(10))
    put(file, "orders")
    assert run(spark, file, to) == 0
    assert offsets(to) == list(range(20))


def test_plain_parquet(spark: SparkSession, tmp_path: Path) -> None:
    file, to = tmp_path / "history.db", tmp_path / "archive"
    for _ in range(2):
        put(file, "..", "a/../b")
        run(spark, file, to, "--format", "parquet")
    found = ds.dataset(str(to)).to_table()
    assert sorted(found["offset"].to_pylist()) == list(range(20))
    assert set(found["topic"].to_pylist()) == {"a/../b", ".."}
    reader = spark.read.option("recursiveFileLookup", "true")
    assert reader.parquet(str(to)).where("topic = '..'").count() == 10


def test_the_end_of_once_compacts(spark: SparkSession, tmp_path: Path) -> None:
    file, to = tmp_path / "history.db", tmp_path / "archive"
    for _ in range(6):
        put(file, "orders")
    run(spark, file, to, "--partition-by", "day", "--compact-every", "2", "--max-rows", "10")
    # Three are too few to be worth it.
    assert len(DeltaTable(str(to)).file_uris()) <= 3
    assert offsets(to) == list(range(60))
