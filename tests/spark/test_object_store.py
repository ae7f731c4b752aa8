"""Jobs on tables in an object store: moto's S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pubsub.errors import ConfigurationError
from pubsub.pipeline.jobs import archive, derive, replay
from pubsub.pipeline.tables.delta import open_delta
from pubsub.pipeline.tables.location import StorageError
from tests.integration.broker import Broker
from tests.object_store import BUCKET, SECRET, ObjectStore, store_options
from tests.spark.archive_runs import put
from tests.spark.broker_runs import run
from tests.spark.http_brokers import stored_values, url_of
from tests.spark.token_events import events


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """Yield a store."""
    store = ObjectStore()
    yield store
    store.stop()


def test_archive_derive_and_replay(
    spark: SparkSession,
    broker: Broker,
    store: ObjectStore,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secrets, sql = tmp_path / "options", tmp_path / "sql"
    secrets.write_text("\n".join(f"{name}={value}" for name, value in store_options(store.url)))
    sql.write_text("SELECT topic, value, offset FROM messages")
    put(tmp_path / "messages", "a/b", "c")
    source: list[object] = [
        "--path",
        tmp_path / "messages",
        "--once",
        "--storage-options-file",
        secrets,
    ]

    to: list[object] = ["--to", f"s3://{BUCKET}/archive", "--checkpoint", tmp_path / "archive"]
    assert run(archive, spark, *source, *to) == 0
    assert run(archive, spark, *source, *to) == 0
    found = open_delta(store.location("archive")).to_pyarrow_table()
    assert sorted(found["offset"].to_pylist()) == list(range(10))

    to = ["--to", f"table:s3://{BUCKET}/derived", "--checkpoint", tmp_path / "derived"]
    derived: list[object] = ["--sql", sql, "--partition-by", "topic"]
    assert run(derive, spark, *source, *derived, *to) == 0
    found = open_delta(store.location("derived")).to_pyarrow_table()
    assert sorted(found["offset"].to_pylist()) == list(range(10))

    again: list[object] = ["--from", f"s3://{BUCKET}/archive", "--url", url_of(broker)]
    again += ["--checkpoint", tmp_path / "replay", "--storage-options-file", secrets]
    assert run(replay, spark, *again) == 0
    assert stored_values(broker, "a/b") == [b"%d" % n for n in range(0, 10, 2)]

    shown = capfd.readouterr()
    checkpoints = (path for path in tmp_path.rglob("*") if path.is_file() and path != secrets)
    for data in (
        events(spark),
        shown.out.encode(),
        shown.err.encode(),
        *(path.read_bytes() for path in checkpoints),
    ):
        assert SECRET.encode() not in data


def test_errors_come_before_the_stream(
    spark: SparkSession, tmp_path: Path, store: ObjectStore
) -> None:
    put(tmp_path / "history", "a")
    source: list[object] = [
        "--path",
        tmp_path / "history",
        "--once",
        "--to",
        f"s3://{BUCKET}/archive",
    ]
    with pytest.raises(ConfigurationError, match="option --checkpoint is required"):
        run(archive, spark, *source)
    source += ["--checkpoint", tmp_path / "c"]
    with pytest.raises(ConfigurationError, match="use --format delta"):
        run(archive, spark, *source, "--format", "parquet")
    for name, value in store_options("http://127.0.0.1:1"):
        source += ["--storage-option", f"{name}={value}"]
    with pytest.raises(StorageError, match="Connection refused") as caught:
        run(archive, spark, *source)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "c").exists()
