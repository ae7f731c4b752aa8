"""A streaming query over two brokers that share a history, of which one is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pubsub.pipeline.publishing.staged_writer import RUN_AGAIN
from tests.integration.broker import Start
from tests.integration.nats_server import NatsServer, nats_server
from tests.integration.places import Place, body_of, settle
from tests.spark.http_brokers import finish, stored_values, stream, url_of, values
from tests.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path) as made:
        yield made


def publish(place: Place, numbers: range) -> None:
    for number in numbers:
        assert place.publish(f"{place.name}{number}")


def test_each_message_once_while_a_broker_is_killed(
    spark: SparkSession, start: Start, server: NatsServer, tmp_path: Path
) -> None:
    first, second = (Place(start, server.url, tmp_path / name) for name in "ab")
    for place in (first, second):
        publish(place, range(200))
    settle(first, second)
    urls = f"{url_of(first.broker)},{url_of(second.broker)}"
    frame = stream(spark, urls, minPartitions=2, maxOffsetsPerTrigger=50)
    out = tmp_path / "out"
    writer = frame.writeStream.format("parquet").options(
        path=str(out), checkpointLocation=str(tmp_path / "checkpoint")
    )
    query = writer.trigger(processingTime="0 seconds").start()
    until(lambda: len(query.recentProgress) > 2, "some batches", 180)
    # The first one plans.
    first.broker.kill()
    publish(second, range(200, 300))
    query.processAllAvailable()
    # A new process, with the checkpoint, and the broker at another port.
    query.stop()
    first.begin()
    publish(first, range(200, 300))
    settle(first, second)
    urls = f"{url_of(second.broker)},{url_of(first.broker)}"
    frame = stream(spark, urls, minPartitions=2)
    writer = frame.writeStream.format("parquet").options(
        path=str(out), checkpointLocation=str(tmp_path / "checkpoint")
    )
    progress = finish(writer.trigger(availableNow=True).start())
    assert sum(one["numInputRows"] for one in progress) == 100
    found = spark.read.parquet(str(out))
    bodies = [body_of(value.decode()) for value in values(found)]
    assert sorted(bodies) == sorted(f"{name}{number}" for name in "ab" for number in range(300))
    # Both of them were read, in parallel.
    assert {row[0] for row in found.select("partition").distinct().collect()} == {0, 1}


def test_batches_are_published_once_while_a_broker_is_killed(
    spark: SparkSession, start: Start, server: NatsServer, tmp_path: Path
) -> None:
    """A stream that is read at both brokers, and written to one of them."""
    first, second = (Place(start, server.url, tmp_path / name) for name in "ab")
    for place in (first, second):
        publish(place, range(60))
    settle(first, second)

    def begin() -> StreamingQuery:
        urls = f"{url_of(first.broker)},{url_of(second.broker)}"
        frame = stream(spark, urls, subscribe="a,b", minPartitions=2, maxOffsetsPerTrigger=20)
        copies = frame.selectExpr("'copies' AS topic", "value", "key")
        writer = copies.writeStream.format("pubsub").options(
            url=urls, checkpointLocation=str(tmp_path / "checkpoint")
        )
        return writer.trigger(processingTime="0 seconds").start()

    query = begin()
    until(lambda: len(query.recentProgress) > 2, "some batches", 180)
    # Its parts are lost if it is killed between two requests of a batch.
    first.broker.kill()
    publish(second, range(60, 70))
    with suppress(StreamingQueryException):
        query.processAllAvailable()
    query.stop()
    error = query.exception()
    assert error is None or RUN_AGAIN in str(error)
    first.begin()
    settle(first, second)
    query = begin()
    query.processAllAvailable()
    query.stop()
    settle(first, second)
    for place in (first, second):
        copies = [body_of(value.decode()) for value in stored_values(place.broker, "copies")]
        wanted = [f"{name}{number}" for name in "ab" for number in range(60)]
        assert sorted(copies) == sorted([*wanted, *(f"b{number}" for number in range(60, 70))])
