"""Streaming queries: batches, restarts of the query and of the broker, and losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.broker import Broker, Start
from tests.spark.http_brokers import client_of, run_once, serve, stream, url_of, values
from tests.spark.stream_rows import numbers, rows_in, send
from tests.waiting import until

Run = Callable[..., list[bytes]]


def test_every_message_once_over_restarts_of_the_query(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    send(broker, *numbers(0, 1000))
    progress = run_once(stream(spark, broker, maxOffsetsPerTrigger=300), out)
    assert [one["numInputRows"] for one in progress] == [300, 300, 300, 100]
    end = json.loads(progress[-1]["sources"][0]["endOffset"])
    assert end["0"]["next"] == 1000
    send(broker, *numbers(1000, 1500))
    run_once(stream(spark, broker), out)
    # Without new messages there is no batch.
    run_once(stream(spark, broker), out)
    assert values(spark.read.parquet(str(out))) == numbers(0, 1500)


def test_the_position_is_reported_to_the_broker(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Spark commits a batch when the next one begins."""
    send(broker, *numbers(0, 100))
    run_once(stream(spark, broker, maxOffsetsPerTrigger=60, readerName="nightly"), tmp_path / "out")
    (reader,) = client_of(broker).readers()
    assert (reader.name, reader.offset, reader.lag) == ("nightly", 60, 40)


def test_a_reader_name_is_of_one_running_query(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    def start(checkpoint: str) -> StreamingQuery:
        frame = stream(spark, broker, readerName="nightly")
        place = str(tmp_path / checkpoint)
        return frame.writeStream.format("noop").option("checkpointLocation", place).start()

    send(broker, b"1")
    first = start("first")
    first.processAllAvailable()
    with pytest.raises(StreamingQueryException, match="another stream has the name 'nightly'"):
        start("second").processAllAvailable()
    first.stop()
    again = start("first")
    again.processAllAvailable()
    again.stop()


def test_limits_on_a_topic(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    for _ in range(5):
        send(broker, *numbers(0, 100), channel=1)
        send(broker, *numbers(0, 10), channel=2)
    frame = stream(spark, broker, subscribe="cafe/2", maxOffsetsPerTrigger=20)
    progress = run_once(frame, tmp_path / "out")
    counts = [one["numInputRows"] for one in progress if one["numInputRows"]]
    assert sum(counts) == 50
    assert max(counts) <= 20


def test_starting_at_the_end(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    send(broker, b"before")
    run_once(stream(spark, broker, startingOffsets="latest"), tmp_path / "out")
    send(broker, b"after")
    run_once(stream(spark, broker, startingOffsets="latest"), tmp_path / "out")
    assert values(spark.read.parquet(str(tmp_path / "out"))) == [b"after"]


def test_topics_created_later(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    send(broker, b"one", channel=1)
    run_once(stream(spark, broker, subscribePattern="cafe/[12]"), tmp_path / "out")
    send(broker, b"two", channel=2)
    send(broker, b"three", channel=3)
    run_once(stream(spark, broker, subscribePattern="cafe/[12]"), tmp_path / "out")
    assert values(spark.read.parquet(str(tmp_path / "out"))) == [b"one", b"two"]


def test_a_query_survives_broker_restarts(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    """The query continues through restarts of the broker."""
    path, out = tmp_path / "history", tmp_path / "out"
    broker = serve(start, path)
    port = broker.port("http")
    send(broker, *numbers(0, 100))
    writer = stream(spark, broker, maxOffsetsPerTrigger=50).writeStream.format("parquet")
    query = writer.options(path=str(out), checkpointLocation=str(tmp_path / "checkpoint")).start()
    try:
        for life in range(1, 3):
            until(lambda: rows_in(spark, out) == 100 * life, f"life {life}")  # noqa: B023
            broker.kill()
            broker = serve(start, path, port=port)
            send(broker, *numbers(100 * life, 100 * life + 100))
        until(lambda: rows_in(spark, out) == 300, "the last")
        assert query.exception() is None
    finally:
        query.stop()
    assert values(spark.read.parquet(str(out))) == numbers(0, 300)


def overtaken(start: Start, tmp_path: Path) -> tuple[Broker, Callable[[], int]]:
    """Return a broker with retention, and a function that makes it expire unread messages."""
    broker = serve(start, tmp_path / "history", "--retention=*=messages:100")
    client = client_of(broker)

    def overtake() -> int:
        before = client.bounds().next
        for _ in range(10):
            send(broker, *[b"x" * 1000] * 100)
        until(lambda: client.bounds().first > before, "retention")
        return client.bounds().first

    return broker, overtake


def test_retention_overtakes_it(spark: SparkSession, start: Start, tmp_path: Path) -> None:
    broker, overtake = overtaken(start, tmp_path)
    out = tmp_path / "out"
    send(broker, *numbers(0, 10))
    run_once(stream(spark, broker), out)
    first = overtake()
    with pytest.raises(StreamingQueryException) as caught:
        run_once(stream(spark, broker), out)
    assert "partition 0: offsets 10 to " in str(caught.value)
    assert "have expired" in str(caught.value)
    # With failOnDataLoss=false the same checkpoint continues.
    run_once(stream(spark, broker, failOnDataLoss=False), out)
    found = spark.read.parquet(str(out))
    offsets = sorted(row.offset for row in found.select("offset").collect())
    assert offsets[:10] == list(range(10))
    # Retention may have removed more since; the query has read the remaining messages.
    bounds = client_of(broker).bounds()
    assert first <= offsets[10] <= bounds.first
    assert offsets[10:] == list(range(offsets[10], bounds.next))


def test_another_history_under_the_same_url(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    broker = serve(start, tmp_path / "one")
    port = broker.port("http")
    send(broker, *numbers(0, 10))
    run_once(stream(spark, broker), tmp_path / "out")
    broker.stop()
    other = serve(start, tmp_path / "two", port=port)
    send(other, *numbers(0, 20))
    with pytest.raises(StreamingQueryException, match="not the history that was read"):
        run_once(stream(spark, other), tmp_path / "out")


def test_several_brokers(spark: SparkSession, start: Start, tmp_path: Path) -> None:
    """One broker gets no messages for a time; limits are divided by backlog."""
    both = [serve(start, tmp_path / f"{number}") for number in range(2)]
    urls = ",".join(map(url_of, both))
    send(both[0], *numbers(0, 100))
    run_once(stream(spark, urls, maxOffsetsPerTrigger=40), tmp_path / "out")
    send(both[0], *numbers(100, 130))
    send(both[1], *numbers(0, 60))
    progress = run_once(stream(spark, urls, maxOffsetsPerTrigger=30), tmp_path / "out")
    assert [one["numInputRows"] for one in progress] == [30, 30, 30]
    found = spark.read.parquet(str(tmp_path / "out"))
    assert values(found.where("partition = 0")) == numbers(0, 130)
    assert values(found.where("partition = 1")) == numbers(0, 60)


def test_a_stream_from_the_file(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """The broker continues to write the file."""
    for life in range(3):
        send(broker, *numbers(100 * life, 100 * life + 100))
        frame = (
            spark.readStream.format("pubsub")
            .options(path=str(tmp_path / "history"), startingOffsets="earliest")
            .load()
        )
        run_once(frame, tmp_path / "out")
    assert values(spark.read.parquet(str(tmp_path / "out"))) == numbers(0, 300)
