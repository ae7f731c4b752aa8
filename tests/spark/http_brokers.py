"""Brokers as Spark's tests need them, and what there is to read and write there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pubsub.client.history_client import HistoryClient
from tests.integration.broker import HOST, PATIENCE, Broker, Start, listen
from tests.integration.cluster import free_port

Option: TypeAlias = str | int | bool
PROTOCOLS = ("cafe", "nsd", "rheos", "spot", "fast")


def serve(start: Start, path: Path, *options: str, port: int = 0) -> Broker:
    """A broker on a history file with its API, and with all protocols if it has a secret.

    ``port`` is the API's, which another broker had.
    """
    protocols = PROTOCOLS if any("--secret-file" in option for option in options) else ("cafe",)
    api = f"--admin-port=tcp:{port or free_port()}:interface={HOST}"
    return start(*listen(*protocols), api, f"--store=sqlite:{path}", *options)


def url_of(broker: Broker) -> str:
    """Where its API is."""
    return f"http://{HOST}:{broker.port('admin')}"


def client_of(broker: Broker) -> HistoryClient:
    """A client of its API."""
    return HistoryClient(url_of(broker))


def read(spark: SparkSession, where: Broker | str, **options: Option) -> DataFrame:
    """A batch of what a broker has, or brokers."""
    url = where if isinstance(where, str) else url_of(where)
    return spark.read.format("pubsub").options(url=url, **options).load()


def stream(spark: SparkSession, where: Broker | str, **options: Option) -> DataFrame:
    """All that a broker has and gets."""
    url = where if isinstance(where, str) else url_of(where)
    return (
        spark.readStream.format("pubsub")
        .options(**{"startingOffsets": "earliest", **options}, url=url)
        .load()
    )


def values(frame: DataFrame) -> list[bytes]:
    """The column value, in the order of partitions and offsets."""
    rows = frame.select("partition", "offset", "value").collect()
    return [bytes(row["value"]) for row in sorted(rows, key=lambda row: (row[0], row[1]))]


def finish(query: StreamingQuery) -> list[Any]:
    """Wait for the end of a query that ends; its progress. Raises what it fails with."""
    if not query.awaitTermination(int(PATIENCE)):
        query.stop()
        raise AssertionError("the query does not end")
    return list(query.recentProgress)


def run_once(
    frame: DataFrame, directory: Path, kind: str = "parquet", **options: Option
) -> list[Any]:
    """Process what is there into a directory, with a checkpoint beside it."""
    writer = frame.writeStream.format(kind).options(
        path=str(directory), checkpointLocation=f"{directory}-checkpoint", **options
    )
    return finish(writer.trigger(availableNow=True).start())


def stored_values(broker: Broker, *topics: str) -> list[bytes]:
    """What is in the history of these topics, by the API and without Spark."""
    client = client_of(broker)
    batches: Iterable[Any] = client.read(client.bounds().first, topics=topics or None)
    return [value for batch in batches for value in batch["value"].to_pylist()]
