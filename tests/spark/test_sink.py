"""The sink: exactly once over HTTP, at least once over the other protocols, from several tasks."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.broker import HOST, Broker, Start
from tests.integration.cluster import free_port
from tests.spark.http_brokers import (
    PROTOCOLS,
    finish,
    read,
    run_once,
    serve,
    stored_values,
    stream,
    url_of,
    values,
)
from tests.spark.sink_frames import address, rows, write
from tests.spark.source_messages import NAMES, wait_for_messages
from tests.spark.stream_rows import numbers, send


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_over_every_protocol(
    spark: SparkSession, broker: Broker, secret: Path, protocol: str
) -> None:
    """The broker has the messages of four tasks when the write returns."""
    topic = "cafe/3" if protocol == "cafe" else "out"
    options = address(broker, secret, protocol)
    write(rows(spark, 10_000, topic), str(options.pop("url")), **options)
    wait_for_messages(broker, 10_000)
    assert Counter(stored_values(broker, topic)) == Counter(numbers(0, 10_000))


def test_the_next_broker_if_one_does_not_answer(spark: SparkSession, broker: Broker) -> None:
    urls = [f"nsd://{HOST}:{port}" for port in (free_port(), broker.port("nsd"))]
    write(rows(spark, 100, "out"), ",".join(urls))
    wait_for_messages(broker, 100)
    assert Counter(stored_values(broker, "out")) == Counter(numbers(0, 100))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stream_over_every_protocol(
    spark: SparkSession, broker: Broker, secret: Path, tmp_path: Path, protocol: str
) -> None:
    topic = "cafe/3" if protocol == "cafe" else "out"
    send(broker, *numbers(0, 500))
    frame = stream(spark, broker, subscribe="cafe/1", maxOffsetsPerTrigger=200)
    options = {**address(broker, secret, protocol), "topic": topic}
    writer = frame.select("value").writeStream.format("pubsub").options(**options)
    checkpoint = str(tmp_path / "checkpoint")
    finish(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    wait_for_messages(broker, 1000)
    assert stored_values(broker, topic) == numbers(0, 500)


def test_a_refused_message_fails_the_query(spark: SparkSession, broker: Broker) -> None:
    url = f"nsd://{HOST}:{broker.port('nsd')}"
    with pytest.raises(Exception, match="the payload is not UTF-8"):
        write(spark.sql("SELECT 'out' topic, X'FF' value"), url)
    with pytest.raises(Exception, match="MESSAGE TOO BIG"):
        write(spark.sql("SELECT 'out' topic, repeat('x', 1001) value"), url)


def test_over_http_with_all_columns(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql(
        "SELECT 'out' topic, X'00FF' value, X'FE' key, "
        "array(struct('a' AS key, X'01' AS value)) headers"
    )
    write(frame, url_of(broker))
    (row,) = read(spark, broker, includeHeaders=True).collect()
    assert (row.topic, bytes(row.value), bytes(row.key)) == ("out", b"\0\xff", b"\xfe")
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("a", b"\x01")]
    assert row.protocol == "http"


def test_unusual_topic_names_keep_their_order(spark: SparkSession, broker: Broker) -> None:
    made = spark.createDataFrame(
        [(name, f"{number}") for number in range(500) for name in NAMES],
        "topic string, value string",
    ).coalesce(1)
    write(made, url_of(broker))
    found = read(spark, broker)
    for name in NAMES:
        assert values(found.where(found.topic == name)) == numbers(0, 500)


def test_a_frame_of_any_size_in_several_batches(spark: SparkSession, broker: Broker) -> None:
    """80 MB: more than a batch may have, and in one task as much as may be staged."""
    frame = spark.range(0, 80, 1, 2).selectExpr(
        "'out' topic", "concat(string(id), ':', repeat('x', 1048576)) value"
    )
    with pytest.raises(Exception, match="larger than 33554432 bytes"):
        write(frame, url_of(broker))
    assert stored_values(broker, "out") == []
    write(frame, url_of(broker), atomic="false")
    found = [value.partition(b":")[0] for value in stored_values(broker, "out")]
    assert Counter(found) == Counter(numbers(0, 80))


def test_large_payloads_are_staged_in_parts(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(0, 24, 1, 2).selectExpr(
        "'out' topic", "cast(repeat(char(65 + id), 1048576) AS binary) value"
    )
    write(frame, url_of(broker))
    found = read(spark, broker).selectExpr("sha2(value, 256)").collect()
    made = [bytes([65 + number]) * 1024**2 for number in range(24)]
    assert Counter(row[0] for row in found) == Counter(
        hashlib.sha256(payload).hexdigest() for payload in made
    )


def test_the_topic_option_is_the_default_topic(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql("SELECT * FROM VALUES ('a', '1'), (null, '2') AS rows(topic, value)")
    write(frame, url_of(broker), topic="rest")
    assert stored_values(broker, "rest") == [b"2"]
    with pytest.raises(Exception, match="column topic contains a null"):
        write(frame, url_of(broker))
    with pytest.raises(Exception, match="column value contains a null"):
        write(spark.sql("SELECT 'a' topic, cast(null AS string) value"), url_of(broker))


def test_invalid_writes_are_refused(spark: SparkSession, broker: Broker) -> None:
    one = spark.sql("SELECT 'a' topic, 'b' value")
    with pytest.raises(Exception, match="use mode append"):
        one.write.format("pubsub").mode("overwrite").option("url", url_of(broker)).save()
    with pytest.raises(Exception, match="column offset cannot be published"):
        write(one.selectExpr("*", "1 AS offset"), url_of(broker))
    with pytest.raises(Exception, match="column key cannot be published to this URL"):
        write(one.selectExpr("*", "'x' AS key"), f"cafe://{HOST}:{broker.port('cafe')}")
    with pytest.raises(Exception, match="column topic or option topic is required"):
        write(one.select("value"), url_of(broker))
    with pytest.raises(Exception, match="column value must be"):
        write(spark.sql("SELECT 'a' topic, 1 value"), url_of(broker))


def test_a_failed_batch_publishes_nothing(spark: SparkSession, broker: Broker) -> None:
    """One of two tasks stages its rows and the other fails; nothing is published."""
    frame = spark.range(0, 2, 1, 2).selectExpr(
        "'out' topic", "if(id = 1, raise_error('broken'), 'x') value"
    )
    with pytest.raises(Exception, match="broken"):
        write(frame, url_of(broker))
    assert stored_values(broker) == []


def test_nothing_to_write(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    write(rows(spark, 0), url_of(broker))
    frame = stream(spark, broker).select("value")
    run_once(frame, tmp_path / "none", "pubsub", url=url_of(broker), topic="out")
    assert stored_values(broker) == []


def test_a_repeated_batch_is_published_once(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Spark has lost the record of a commit; the broker has not."""
    send(broker, *numbers(0, 100))
    frame = stream(spark, broker, subscribe="cafe/1", maxOffsetsPerTrigger=40).select("value")
    where = tmp_path / "again"
    run_once(frame, where, "pubsub", url=url_of(broker), topic="out")
    for name in ("2", ".2.crc"):
        (Path(f"{where}-checkpoint") / "commits" / name).unlink()
    run_once(frame, where, "pubsub", url=url_of(broker), topic="out")
    send(broker, *numbers(100, 150))
    run_once(frame, where, "pubsub", url=url_of(broker), topic="out")
    assert stored_values(broker, "out") == numbers(0, 150)


def test_a_new_query_is_distinct_from_an_earlier_one(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The batches of a new query also begin at 0."""
    send(broker, *numbers(0, 10))
    for life in range(2):
        frame = stream(spark, broker, subscribe="cafe/1").select("value")
        run_once(frame, tmp_path / str(life), "pubsub", url=url_of(broker), topic="out")
    assert stored_values(broker, "out") == [*numbers(0, 10), *numbers(0, 10)]


def test_a_broker_restart_loses_no_batch(spark: SparkSession, start: Start, tmp_path: Path) -> None:
    """After a restart of the broker between two batches, a new start of the query loses nothing."""
    path = tmp_path / "history"
    broker = serve(start, path)
    port = broker.port("http")
    send(broker, *numbers(0, 100))
    frame = stream(spark, broker, subscribe="cafe/1").select("value")
    run_once(frame, tmp_path / "out", "pubsub", url=url_of(broker), topic="out")
    broker.kill()
    broker = serve(start, path, port=port)
    send(broker, *numbers(100, 200))
    run_once(frame, tmp_path / "out", "pubsub", url=url_of(broker), topic="out")
    assert stored_values(broker, "out") == numbers(0, 200)
