"""Brokers with the HTTP API for Spark tests, and functions to read from them and write to them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pubsub.client.history_client import HistoryClient
from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.cluster import free_port

Option: TypeAlias = str | int | bool
PROTOCOLS = ("cafe", "nsd", "rheos", "spot", "fast")


def serve(start: Start, path: Path, *options: str, port: int = 0) -> Broker:
    """Start a broker on a history, with all protocols if it has a secret.

    ``port`` is the port of the API, such as that of an earlier broker.
    """
    protocols = PROTOCOLS if any("--secret-file" in option for option in options) else ("cafe",)
    api = f"--admin-port=tcp:{port or free_port()}:interface={HOST}"
    return start(*listen(*protocols), api, f"--store=log:{path}", *options)


def url_of(broker: Broker) -> str:
    """Return the URL of the API."""
    return f"http://{HOST}:{broker.port('http')}"


def client_of(broker: Broker) -> HistoryClient:
    """Return a client of the API."""
    return HistoryClient(url_of(broker))


def read(spark: SparkSession, where: Broker | str, **options: Option) -> DataFrame:
    """Return a batch frame of one or several brokers."""
    url = where if isinstance(where, str) else url_of(where)
    return spark.read.format("pubsub").options(url=url, **options).load()


def stream(spark: SparkSession, where: Broker | str, **options: Option) -> DataFrame:
    """Return a stream of existing and new messages of one or several brokers."""
    url = where if isinstance(where, str) else url_of(where)
    return (
        spark.readStream.format("pubsub")
        .options(**{"startingOffsets": "earliest", **options}, url=url)
        .load()
    )


def values(frame: DataFrame) -> list[bytes]:
    """Return the column value in the order of partitions and offsets."""
    rows = frame.select("partition", "offset", "value").collect()
    return [bytes(row["value"]) for row in sorted(rows, key=lambda row: (row[0], row[1]))]


def finish(query: StreamingQuery) -> list[Any]:
    """Wait for the end of a query and return its progress. Raises the error of the query."""
    if not query.awaitTermination(int(TIMEOUT)):
        query.stop()
        raise AssertionError("the query does not end")
    return list(query.recentProgress)


def run_once(
    frame: DataFrame, directory: Path, kind: str = "parquet", **options: Option
) -> list[Any]:
    """Write the existing messages into a directory, with a checkpoint beside it."""
    writer = frame.writeStream.format(kind).options(
        path=str(directory), checkpointLocation=f"{directory}-checkpoint", **options
    )
    return finish(writer.trigger(availableNow=True).start())


def stored_values(broker: Broker, *topics: str) -> list[bytes]:
    """Return the stored payloads of these topics, read over HTTP without Spark."""
    client = client_of(broker)
    batches: Iterable[Any] = client.read(client.bounds().first, topics=topics or None)
    return [value for batch in batches for value in batch["value"].to_pylist()]
