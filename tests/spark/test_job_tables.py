"""The data source of tables: DataFrames are written in batches, each once, and read again."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.spark import TableTarget, query_id, read, save
from tests.spark.messages import MESSAGES, Feed, at, frame, message, table_rows

TOPICS = ["orders", "a/../b", "..", "q'\"", "🦊", "_x"]


def dated(messages: DataFrame) -> DataFrame:
    """Add the day of each message."""
    return messages.withColumn("day", F.to_date("timestamp"))


def test_rows_are_read_as_written(spark: SparkSession, tmp_path: Path) -> None:
    rows = [message(n, TOPICS[n % 6], value=bytes([n, 0, 255]), key=None) for n in range(60)]
    messages = frame(spark, rows, MESSAGES)
    save(dated(messages), TableTarget(str(tmp_path / "t"), ("topic", "day")), "q", 0)
    found = read(spark, str(tmp_path / "t"))
    assert found.schema["timestamp"].dataType == messages.schema["timestamp"].dataType
    same = found.select(*messages.columns)
    assert same.exceptAll(messages).isEmpty()
    assert messages.exceptAll(same).isEmpty()


def test_a_batch_is_stored_once(spark: SparkSession, tmp_path: Path) -> None:
    target = TableTarget(str(tmp_path / "t"), ("day",))
    for number in (0, 0, 1, 1):
        rows = [message(10 * number + n) for n in range(10)]
        save(dated(frame(spark, rows, MESSAGES)), target, "q", number)
    assert sorted(row["offset"] for row in table_rows(tmp_path / "t")) == list(range(20))


def test_filters_select_rows_and_skip_files(spark: SparkSession, tmp_path: Path) -> None:
    target = TableTarget(str(tmp_path / "t"), ("topic", "day"))
    for number in range(3):
        rows = [message(10 * number + n, TOPICS[n % 6]) for n in range(10)]
        one_task = frame(spark, rows, MESSAGES).coalesce(1)
        save(dated(one_task), target, "q", number)
    path = str(tmp_path / "t")
    one = read(spark, path, ["offset"], [("topic", "=", ".."), ("offset", ">=", 10)])
    assert sorted(row.offset for row in one.collect()) == [12, 18, 22, 28]
    assert one.rdd.getNumPartitions() == 2
    timed = read(spark, path, ["offset"], [("timestamp", "<", at(2)), ("topic", "in", TOPICS)])
    assert sorted(row.offset for row in timed.collect()) == [0, 1]


def test_no_file_is_selected(spark: SparkSession, tmp_path: Path) -> None:
    target = TableTarget(str(tmp_path / "t"))
    path = str(tmp_path / "t")
    target.table(pa.schema([("offset", pa.int64())])).create_if_missing()
    assert read(spark, path).count() == 0
    save(frame(spark, [message(0)], MESSAGES).select("offset"), target, "q", 0)
    assert read(spark, path, filters=[("offset", ">", 0)]).collect() == []


def test_an_old_version_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    target = TableTarget(str(tmp_path / "t"))
    path = str(tmp_path / "t")
    save(frame(spark, [message(0)], MESSAGES), target, "q", 0)
    version = DeltaTable(path).version()
    save(frame(spark, [message(1)], MESSAGES), target, "q", 1)
    assert read(spark, path, version=version).count() == 1
    assert read(spark, path).count() == 2


def test_a_missing_table_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a Delta table"):
        read(spark, str(tmp_path / "none"))


def test_spark_reports_query_and_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's local property is undocumented, and exactly-once writing depends on it."""
    feed = Feed(spark, tmp_path / "feed", MESSAGES)
    feed.put([message(0)])
    feed.put([message(1)])
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def take(_batch: DataFrame, number: int) -> None:
        seen.append((query_id(spark), number))
        done.set()

    for _ in range(2):
        writer = feed.stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        feed.put([message(2)])
    assert done.is_set()
    assert seen == [(query.id, 0), (query.id, 1), (query.id, 2)]


def test_bytes_that_are_cast_to_text_leave_the_table_readable(
    spark: SparkSession, tmp_path: Path
) -> None:
    messages = frame(spark, [message(0, value=b"ok"), message(1, value=b"\xff!")], MESSAGES)
    rows = messages.selectExpr("cast(value AS string) AS text", "cast(value AS string) AS part")
    save(rows, TableTarget(str(tmp_path / "t"), ("part",)), "q", 0)
    found = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    found.validate(full=True)
    assert sorted(found["text"].to_pylist()) == ["ok", "\ufffd!"]
    assert sorted(found["part"].to_pylist()) == ["ok", "\ufffd!"]
