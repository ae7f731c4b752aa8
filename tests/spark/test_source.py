"""The source: Spark reads every message that brokers received, unchanged."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pubsub.pipeline.filters import read_where
from pubsub.pipeline.options.schemas import MESSAGES_SCHEMA
from tests.histories import history
from tests.integration.broker import Broker, Start
from tests.integration.fast_client import make_token
from tests.spark.http_brokers import read, serve, url_of, values
from tests.spark.source_messages import NAMES, publish, publisher, publishers, wait_for_messages

MEBIBYTE = 1024**2


def test_all_five_protocols(spark: SparkSession, broker: Broker, secret: Path) -> None:
    """Spark reads every message with its protocol."""
    sent = {}
    for name, client in publishers(broker, secret).items():
        texts = [b"%s %d" % (name.encode(), number) for number in range(1000)]
        # nsd carries text only.
        others = [] if name == "nsd" else [b"\xff\xfe\x00", b"", bytes(range(256))]
        sent[name] = [*texts, *others]
        publish(client, "cafe/0" if name == "cafe" else name, *sent[name])
    wait_for_messages(broker, sum(map(len, sent.values())))
    frame = read(spark, broker, rowsPerTask=700)
    assert frame.schema == MESSAGES_SCHEMA
    for name, payloads in sent.items():
        assert values(frame.where(frame.protocol == name)) == payloads
    assert frame.select("message_id").distinct().count() == frame.count()
    offsets = sorted(row[0] for row in frame.select("offset").collect())
    assert offsets == list(range(len(offsets)))


def test_workers_begin_with_their_modules(spark: SparkSession) -> None:
    """They are imported once for all workers, and PySpark from where it is installed."""

    def look(_: object) -> Iterator[tuple[bool, str]]:
        here = "pubsub.pipeline.source" in sys.modules
        yield here, str(sys.modules["pyspark"].__file__)

    found = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert found == [(True, pyspark.__file__)]


def test_unusual_topic_names(spark: SparkSession, broker: Broker) -> None:
    for number, name in enumerate(NAMES):
        publish(publisher(broker, "spot"), name, b"%d" % number)
    wait_for_messages(broker, len(NAMES))
    everything = read(spark, broker).select("topic", "value").collect()
    assert {row.topic: int(row.value) for row in everything} == {
        name: number for number, name in enumerate(NAMES)
    }
    for number, name in enumerate(NAMES):
        assert values(read(spark, broker, subscribe=json.dumps([name]))) == [b"%d" % number]
    pattern = "[^a-z]+|a,.*"
    assert values(read(spark, broker, subscribePattern=pattern)) == [b"0", b"4"]


def test_large_payloads(spark: SparkSession, broker: Broker) -> None:
    """A hundred payloads of a mebibyte, more than an Arrow batch should hold."""
    sent = [bytes([number]) * MEBIBYTE for number in range(100)]
    publish(publisher(broker, "spot"), "large", *sent)
    wait_for_messages(broker, len(sent))
    frame = read(spark, broker).selectExpr("offset", "sha2(value, 256) digest")
    found = {row.offset: row.digest for row in frame.collect()}
    assert found == {n: hashlib.sha256(payload).hexdigest() for n, payload in enumerate(sent)}


def test_a_thousand_topics(spark: SparkSession, broker: Broker) -> None:
    with publisher(broker, "spot") as client:
        for number in range(5000):
            client.add(f"many/{number % 1000}", b"%d" % number)
        client.finish()
    wait_for_messages(broker, 5000)
    frame = read(spark, broker, subscribePattern=r"many/\d*7", rowsPerTask=1000)
    assert frame.select("topic").distinct().count() == 100
    assert values(frame) == [b"%d" % number for number in range(5000) if number % 10 == 7]
    names = json.dumps([f"many/{number}" for number in range(500)])
    assert read(spark, broker, subscribe=names).count() == 2500


def test_nothing_to_read(spark: SparkSession, broker: Broker) -> None:
    assert read(spark, broker).count() == 0
    publish(publisher(broker, "spot"), "full", b"x")
    wait_for_messages(broker, 1)
    assert read(spark, broker, subscribe="empty").count() == 0
    assert read(spark, broker, subscribePattern="empt.*").count() == 0
    assert read(spark, broker, startingOffsets="latest").count() == 0


def test_several_brokers(spark: SparkSession, start: Start, tmp_path: Path) -> None:
    """Each broker is a partition with its own offsets."""
    both = [serve(start, tmp_path / f"{number}") for number in range(2)]
    for number, broker in enumerate(both):
        publish(
            publisher(broker, "cafe"),
            "cafe/1",
            *[b"%d-%d" % (number, index) for index in range(100 + number)],
        )
        wait_for_messages(broker, 100 + number)
    frame = read(spark, ",".join(map(url_of, both)))
    assert values(frame) == [b"%d-%d" % (n, i) for n in range(2) for i in range(100 + n)]
    later = read(spark, ",".join(map(url_of, both)), startingOffsets='{"0": "latest", "1": 99}')
    assert values(later) == [b"1-99", b"1-100"]
    assert {row.partition for row in later.collect()} == {1}


def test_the_file_has_the_same_rows_as_http(
    spark: SparkSession, broker: Broker, secret: Path, tmp_path: Path
) -> None:
    for name, client in publishers(broker, secret).items():
        publish(client, "cafe/1" if name == "cafe" else name, b"x", b"y" * 1000)
    wait_for_messages(broker, 10)
    path = str(tmp_path / "history")
    for options in ({}, {"subscribe": "nsd,spot"}, {"includeHeaders": "true"}):
        over_http = read(spark, broker, **options)
        of_file = spark.read.format("pubsub").options(path=path, **options).load()
        assert of_file.schema == over_http.schema
        # The topic of fast has a queue key; the broker's grant opens it over HTTP.
        assert of_file.orderBy("offset").collect() == over_http.orderBy("offset").collect()


def test_events(spark: SparkSession, start: Start, tmp_path: Path, secret: Path) -> None:
    """Events require a permission over HTTP and none in the file; they are not messages."""
    path = tmp_path / "history"
    event = {"event": "refused", "protocol": "cafe", "reason": "not-authorized", "bytes": 5}
    with history(path, time.time_ns() // 1000) as file:
        file.put("$SYS/events", [json.dumps(event).encode(), b'{"event": "connect"}'])
        file.put("orders", [b"x"])
    broker = serve(start, path, f"--secret-file={secret}")
    with pytest.raises(Exception, match="403"):
        read(spark, broker, stream="events").count()
    with pytest.raises(Exception, match="403"):
        read(spark, broker, subscribe="$SYS/events").count()
    assert values(read(spark, broker, subscribePattern=".*")) == [b"x"]
    token = make_token(secret, permission="history").decode()
    over_http = read(spark, broker, stream="events", token=token)
    of_file = spark.read.format("pubsub").options(path=str(path), stream="events").load()
    rows = over_http.orderBy("offset").collect()
    assert rows == of_file.orderBy("offset").collect()
    assert [(row.offset, row.event, row.reason, row.bytes) for row in rows] == [
        (0, "refused", "not-authorized", 5),
        (1, "connect", None, None),
    ]
    assert values(read(spark, broker, token=token)) == [b"x"]


def test_selected_columns(spark: SparkSession, broker: Broker) -> None:
    publish(publisher(broker, "cafe"), "cafe/1", b"x")
    wait_for_messages(broker, 1)
    frame = (
        spark.read.format("pubsub")
        .schema("value binary, topic string")
        .option("url", url_of(broker))
        .load()
    )
    assert [tuple(row) for row in frame.collect()] == [(bytearray(b"x"), "cafe/1")]


def test_from_sql(spark: SparkSession, broker: Broker) -> None:
    publish(publisher(broker, "cafe"), "cafe/1", b"x")
    wait_for_messages(broker, 1)
    read(spark, broker).createOrReplaceTempView("messages")
    assert spark.sql("SELECT sum(length(value)) FROM messages").collect()[0][0] == 1


CONDITIONS = (
    "topic = 'orders'", "topic <=> 'orders' AND offset >= 150", "'alerts' = topic OR offset = 3",
    "topic IN ('orders', '$SYS/events') AND NOT offset < 20", "offset BETWEEN 20 AND '25'",
    "cast(offset AS string) LIKE '1%' AND topic = 'alerts'", "topic = cast('orders' AS string)",
    "offset = 5L OR offset = 7.0", "(topic = 'alerts' OR topic = 'orders') AND (offset % 7 = 0)",
    "timestamp >= '{time}' AND topic = 'alerts'", "timestamp = timestamp'{time}'",
    "timestamp < '{time}'", "timestamp >= date'2000-01-01' AND partition = 0", "topic = 'nobody'",
    "CASE WHEN offset > 5 AND topic = 'orders' AND true THEN false ELSE true END", "topic = NULL",
)  # fmt: skip


def test_filters_are_pushed(spark: SparkSession, start: Start, tmp_path: Path) -> None:
    """A frame of read_where has the rows of one with a filter, and reads those it asks for."""
    path, now = tmp_path / "history", time.time_ns() // 1000 - 10_000_000
    for number, topic in enumerate(("orders", "alerts", "orders", "$SYS/events")):
        with history(path, now + number * 1_000_000) as file:
            file.put(topic, [b"%d" % index for index in range(50)])
    broker = serve(start, path)
    moment = datetime.fromtimestamp((now + 1_000_000) / 1e6, UTC).isoformat()
    reader = spark.read.format("pubsub").option("url", url_of(broker))
    whole = reader.load().cache()
    for condition in (each.format(time=moment) for each in CONDITIONS):
        wanted = whole.where(condition).orderBy("offset").collect()
        assert read_where(reader, condition).orderBy("offset").collect() == wanted, condition
    assert reader.option("filter", "topic = 'alerts' AND offset > 60").load().count() == 39
    whole.unpersist()


def test_invalid_options(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(Exception, match="did you mean subscribe"):
        read(spark, broker, subscrib="a").count()
    with pytest.raises(Exception, match="does not apply to a batch query"):
        read(spark, broker, maxOffsetsPerTrigger=5).count()
