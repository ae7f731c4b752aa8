"""The job archive on Iceberg tables."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

from pubsub.errors import ConfigurationError
from pubsub.pipeline.jobs import archive
from pubsub.pipeline.jobs.archive import Target, save
from tests.spark.archive_runs import put
from tests.spark.archive_runs import run as run_archive
from tests.spark.lake import Lake


def test_every_message_is_there_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for _ in range(3):
        put(lake.history, "a/b", "c")
        assert lake.archive(spark, "--headers") == 0
    assert lake.offsets() == list(range(30))
    table = load_catalog("lake", **lake.options).load_table("lake.messages")
    assert [str(field.transform) for field in table.spec().fields] == ["identity", "day"]
    assert {task.file.partition[0] for task in table.scan().plan_files()} == {"a/b", "c"}


def test_a_death_after_the_commit_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    put(lake.history, "orders")

    def dying(
        rows: DataFrame, target: Target, headers: bool, query: str, batch: int, *more: bool
    ) -> int:
        save(rows, target, headers, query, batch, *more)
        raise RuntimeError("Died")

    with patch.object(archive, "save", dying), pytest.raises(Exception, match="Died"):
        lake.archive(spark)
    assert lake.offsets() == list(range(10))
    put(lake.history, "orders")
    assert lake.archive(spark) == 0
    assert lake.offsets() == list(range(20))


def test_a_name_and_a_checkpoint_are_needed(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "messages", "orders")
    given = ["--format", "iceberg"]
    with pytest.raises(ConfigurationError, match="option --checkpoint is required"):
        run_archive(spark, tmp_path / "messages", Path("lake.messages"), *given)
    given += ["--checkpoint", str(tmp_path / "c")]
    with pytest.raises(ConfigurationError, match=r"is named NAMESPACE\.TABLE"):
        run_archive(spark, tmp_path / "messages", Path("messages"), *given)
    assert not (tmp_path / "c").exists()
