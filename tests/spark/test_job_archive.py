"""The job archive on streams of literal rows."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pubsub.pipeline.jobs import archive
from pubsub.pipeline.tables.spark import Target, save
from tests.spark.messages import MESSAGES, Feed, message, table_rows
from tests.spark.running import run


def offsets(path: Path) -> list[int]:
    """The offsets in the table."""
    return sorted(row["offset"] for row in table_rows(path))


def test_every_message_is_there_once_over_restarts(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed, to = Feed(spark, tmp_path / "feed", MESSAGES), tmp_path / "archive"
    for part in range(3):
        feed.put([message(10 * part + n, f"t/{n % 3}") for n in range(10)])
        assert run(archive, spark, feed.stream, "--to", to) == 0
    assert offsets(to) == list(range(30))
    table = DeltaTable(str(to))
    assert table.metadata().partition_columns == ["topic", "day"]
    assert {row["topic"] for row in table.partitions()} == {"t/0", "t/1", "t/2"}
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(step["batch"], step["rows"]) for step in steps] == [(0, 10), (1, 10), (2, 10)]


def test_a_death_between_append_and_commit_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, to = Feed(spark, tmp_path / "feed", MESSAGES), tmp_path / "archive"
    feed.put([message(n) for n in range(10)])

    class Died(Exception):
        pass

    def dying(df: DataFrame, target: Target, query: str, batch: int) -> None:
        save(df, target, query, batch)
        raise Died

    with patch.object(archive, "save", dying), pytest.raises(Exception, match="Died"):
        run(archive, spark, feed.stream, "--to", to)
    assert offsets(to) == list(range(10))
    feed.put([message(10 + n) for n in range(10)])
    assert run(archive, spark, feed.stream, "--to", to) == 0
    assert offsets(to) == list(range(20))


def test_plain_parquet(spark: SparkSession, tmp_path: Path) -> None:
    feed, to = Feed(spark, tmp_path / "feed", MESSAGES), tmp_path / "archive"
    for part in range(2):
        feed.put([message(10 * part + n, "a/../b" if n % 2 else "..") for n in range(10)])
        run(archive, spark, feed.stream, "--to", to, "--format", "parquet")
    found = ds.dataset(str(to)).to_table()
    assert sorted(found["offset"].to_pylist()) == list(range(20))
    assert set(found["topic"].to_pylist()) == {"a/../b", ".."}
    reader = spark.read.option("recursiveFileLookup", "true")
    assert reader.parquet(str(to)).where("topic = '..'").count() == 10


def test_the_end_of_once_compacts(spark: SparkSession, tmp_path: Path) -> None:
    feed, to = Feed(spark, tmp_path / "feed", MESSAGES), tmp_path / "archive"
    for part in range(6):
        feed.put([message(10 * part + n) for n in range(10)])
    run(archive, spark, feed.stream, "--to", to, "--partition-by", "day", "--compact-every", "2")
    # Three are too few to be worth it.
    assert len(DeltaTable(str(to)).file_uris()) <= 3
    assert offsets(to) == list(range(60))
