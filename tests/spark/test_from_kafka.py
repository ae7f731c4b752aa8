"""The page for users of Kafka: its example, with a broker."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from tests.histories import history
from tests.integration.broker import Broker, Start
from tests.integration.document_blocks import ROOT, blocks
from tests.spark.http_brokers import read, serve, stored_values, url_of
from tests.spark.sink_frames import write

PAGE = ROOT / "docs/from-kafka.md"


def test_the_example(spark: SparkSession, start: Start, tmp_path: Path) -> None:
    hour = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
    path = tmp_path / "history"
    for seconds in (hour, time.time()):
        with history(path, int(seconds * 1_000_000)) as file:
            file.put("large-orders", [b"%04d" % seconds])
            file.put("orders", [b"%04d" % number for number in range(0, 1000, 100)])
    # Messages of that day are older than the default retention.
    broker = serve(start, path, "--retention=*=messages:1000000")
    copied, selected = (
        block.text.replace("http://127.0.0.1:7080", url_of(broker)) for block in blocks(PAGE)
    )
    names: dict[str, Any] = {"spark": spark, "lit": lit, "checkpoint": str(tmp_path / "checkpoint")}
    exec(copied, names)
    found = stored_values(broker, "large-orders")[2:]
    assert sorted(found) == sorted([b"0600", b"0700", b"0800", b"0900"] * 2)
    exec(selected, names)
    frame = names["hour"]
    assert [bytes(row["value"]) for row in frame.collect()] == [b"%04d" % hour]
    assert frame.columns[:3] == ["key", "value", "topic"]


def test_keys_and_headers(spark: SparkSession, broker: Broker) -> None:
    """Kafka has null keys and values, and several headers of one key."""
    headers = [("k", b"1"), ("k", b"2"), ("n", None)]
    of_headers = "array<struct<key:string,value:binary>>"
    columns = f"topic string, value binary, key binary, headers {of_headers}"
    frame = spark.createDataFrame([("a", b"", None, headers)], columns)
    write(frame, url_of(broker))
    write(frame.drop("headers"), url_of(broker))
    found = read(spark, broker, columns="kafka", includeHeaders=True).orderBy("offset").collect()
    assert [bytes(row["key"]) for row in found] == [b"", b""]
    shown = [[(each["key"], bytes(each["value"])) for each in row["headers"]] for row in found]
    assert shown == [[("k", b"2"), ("n", b"")], []]
