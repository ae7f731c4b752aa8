"""The job metrics on literal rows."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import SparkSession

from pubsub.pipeline.jobs import job_publisher, metrics
from tests.spark.job_once import run
from tests.spark.messages import MESSAGES, Feed, at, frame, message, table_rows


def test_counts_sizes_and_senders_by_topic_and_window(spark: SparkSession) -> None:
    rows = [
        message(n, "a", seconds=n / 10, value=bytes(n + 1), key=bytes([n % 7])) for n in range(100)
    ]
    rows += [message(100, "b", seconds=3, value=b"", key=None)]
    rows += [message(101, "a", seconds=12, value=bytes(5))]
    windowed = metrics.with_windows(frame(spark, rows, MESSAGES), 10, 5)
    found = metrics.rows(windowed).orderBy("topic", "window_start").toArrow().cast(metrics.SCHEMA)
    first, second, other = found.to_pylist()
    assert (first["topic"], first["window_start"], first["window_end"]) == ("a", at(0), at(10))
    assert (first["messages"], first["bytes"], first["senders"]) == (100, 5050, 7)
    assert abs(first["size_p50"] - 50) <= 1
    assert abs(first["size_p95"] - 95) <= 1
    assert abs(first["size_p99"] - 99) <= 1
    assert first["size_max"] == 100
    # The messages are years old; a higher percentile is an older age.
    assert 0 < first["age_p50"] <= first["age_p95"] <= first["age_p99"] <= first["age_max"]
    assert (second["window_start"], second["messages"], second["bytes"]) == (at(10), 1, 5)
    assert (other["topic"], other["messages"], other["bytes"]) == ("b", 1, 0)
    assert {row["late"] for row in (first, second, other)} == {0}


def test_windows_are_written_once_and_late_messages_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, to = Feed(spark, tmp_path / "feed", MESSAGES), tmp_path / "metrics"
    feed.put([message(n, seconds=n) for n in range(10)])
    feed.put([message(10 + n, seconds=20 + n) for n in range(10)])
    # The watermark is at 24 s now. Spark drops messages in windows that it had passed before the
    # last batch.
    feed.put([message(19, seconds=1.5)])
    feed.put([message(20 + n, seconds=1) for n in range(3)] + [message(23, seconds=20.5)])
    feed.put([message(30, seconds=60)])
    assert run(metrics, spark, feed.stream, "--to", to) == 0
    rows = table_rows(to)
    kept = {row["window_start"]: row["messages"] for row in rows if row["topic"]}
    assert kept == {at(0): 11, at(20): 11}
    (late,) = [row for row in rows if row["topic"] is None]
    assert (late["window_start"], late["window_end"], late["late"]) == (at(0), at(10), 3)
    # The last window waits for newer messages, also across a restart.
    feed.put([message(31, seconds=100)])
    assert run(metrics, spark, feed.stream, "--to", to) == 0
    assert {row["window_start"] for row in table_rows(to)} == {at(0), at(20), at(60)}


def test_rows_are_published_as_json(spark: SparkSession, tmp_path: Path) -> None:
    feed, to = Feed(spark, tmp_path / "feed", MESSAGES), tmp_path / "metrics"
    feed.put([message(n, "☃", seconds=n) for n in range(30)])
    sent: list[tuple[list[pa.RecordBatch], int]] = []

    def send(_self: object, messages: list[pa.RecordBatch], _query: str, batch: int) -> None:
        sent.append((messages, batch))

    with patch.object(job_publisher.JobPublisher, "send", send):
        run(metrics, spark, feed.stream, "--to", to, "--publish")
    (only,) = [batch for messages, _number in sent for batch in messages]
    assert set(only["topic"].to_pylist()) == {"$SYS/pipeline/metrics"}
    found = [json.loads(value) for value in only["value"].to_pylist()]
    assert sorted(row["messages"] for row in found) == [10, 10]
    assert found[0]["topic"] == "☃"
    assert {row["window_start"] for row in found} == {at(0).isoformat(), at(10).isoformat()}
