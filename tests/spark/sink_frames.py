"""Frames that are written to a broker."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.integration.broker import HOST, Broker
from tests.integration.fast_client import make_token
from tests.spark.http_brokers import (
    Option,
)


def write(frame: DataFrame, url: str, **options: Option) -> None:
    """Publish a frame."""
    frame.write.format("pubsub").mode("append").options(url=url, **options).save()


def rows(spark: SparkSession, count: int, topic: str = "out") -> DataFrame:
    """Return rows with numbers to publish, in four tasks."""
    return spark.range(0, count, 1, 4).selectExpr(f"'{topic}' topic", "string(id) value")


def address(broker: Broker, secret: Path, protocol: str) -> dict[str, Option]:
    """Return the options that a protocol's listener needs."""
    given: dict[str, Option] = {"url": f"{protocol}://{HOST}:{broker.port(protocol)}"}
    if protocol == "fast":
        given["token"] = make_token(secret).decode()
    return given
