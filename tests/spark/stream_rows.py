"""Rows of a stream."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.integration.broker import Broker
from tests.spark.http_brokers import client_of
from tests.spark.source_messages import publish, publisher, wait_for_messages


def send(broker: Broker, *payloads: bytes, channel: int = 1) -> None:
    """Publish, and wait until the messages can be read."""
    before = client_of(broker).bounds().next
    publish(publisher(broker, "cafe"), f"cafe/{channel}", *payloads)
    wait_for_messages(broker, before + len(payloads))


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def rows_in(spark: SparkSession, directory: Path) -> int:
    """Return the number of rows that the query has committed."""
    if not (directory / "_spark_metadata").is_dir():
        return 0
    return spark.read.schema("value binary").parquet(str(directory)).count()
