"""Positions of topics in Spark's checkpoint, quiet topics, and the progress of a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.broker import Broker
from tests.spark.http_brokers import client_of, read, run_once, stream, values
from tests.spark.stream_rows import numbers, rows_in, send
from tests.waiting import until


def test_a_topic_is_added(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """It begins at startingOffsets, and is read beside the other."""
    out = tmp_path / "out"
    send(broker, *numbers(0, 100), channel=1)
    send(broker, *numbers(100, 200), channel=2)
    run_once(stream(spark, broker, subscribe="cafe/1"), out)
    send(broker, *numbers(200, 300), channel=1)
    frame = stream(spark, broker, subscribe="cafe/1,cafe/2", maxOffsetsPerTrigger=100)
    progress = run_once(frame, out)
    assert [one["numInputRows"] for one in progress] == [0, 100, 100]
    assert sorted(values(spark.read.parquet(str(out)))) == sorted(numbers(0, 300))


def test_a_checkpoint_of_an_earlier_version(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """It goes on, also with a batch that was planned and not committed."""
    out = tmp_path / "out"
    send(broker, *numbers(0, 100), channel=1)
    send(broker, *numbers(100, 200), channel=2)
    run_once(stream(spark, broker, subscribe="cafe/1", maxOffsetsPerTrigger=60), out)
    checkpoint = tmp_path / "out-checkpoint"
    for number in ("0", "1"):
        write_as_before(checkpoint / "offsets" / number)
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink()
    send(broker, *numbers(200, 250), channel=1)
    run_once(stream(spark, broker, subscribe="cafe/1"), out)
    run_once(stream(spark, broker, subscribe="cafe/1,cafe/2"), out)
    assert sorted(values(spark.read.parquet(str(out)))) == sorted(numbers(0, 250))


def write_as_before(file: Path) -> None:
    """Rewrite a file of Spark's log of offsets as version 0.1 wrote it."""
    *head, offsets = file.read_text().splitlines()
    old = {
        number: {"next": entry["next"], "epoch": entry["epoch"]}
        for number, entry in json.loads(offsets).items()
    }
    file.write_text("\n".join([*head, json.dumps(old)]))
    file.with_name(f".{file.name}.crc").unlink()


def batches_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the progress of each batch that had rows."""
    return [one for one in query.recentProgress if one["numInputRows"]]


def test_a_quiet_topic_costs_no_batches(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The broker learns how far the query has looked, and the progress has its lag."""
    send(broker, *numbers(0, 10), channel=1)
    frame = stream(spark, broker, subscribe="cafe/1", readerName="quiet", minPartitions=3)
    out = tmp_path / "out"
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/at")
    query = writer.start(str(out))
    try:
        until(lambda: rows_in(spark, out) == 10, "the first batch")
        send(broker, *numbers(0, 500), channel=2)
        client = client_of(broker)
        until(lambda: [one.offset for one in client.readers()] == [510], "the quiet range")
        send(broker, *numbers(10, 20), channel=1)
        until(lambda: rows_in(spark, out) == 20, "the second batch")
        # The progress of a batch comes after its rows.
        until(lambda: len(batches_of(query)) > 1, "the progress of the second batch")
        batches = batches_of(query)
        (source,) = batches[-1]["sources"]
        latest = json.loads(source["latestOffset"])["0"]
        assert latest["lag"] == {"messages": 0, "bytes": 0, "seconds": 0.0}
        assert [one["batchId"] for one in batches] == [0, 1]
    finally:
        query.stop()


def test_several_tasks_of_one_broker(spark: SparkSession, broker: Broker) -> None:
    send(broker, *numbers(0, 1000))
    frame = read(spark, broker, minPartitions=4, endingOffsets='{"cafe/1": {"0": 900}}')
    assert frame.rdd.getNumPartitions() >= 4
    assert values(frame) == numbers(0, 900)
