"""Literal rows: messages and events with the columns of the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MESSAGES = (
    "topic string, partition int, offset bigint, timestamp timestamp, protocol string, "
    "key binary, value binary, message_id string"
)
EVENTS = (
    "partition int, offset bigint, timestamp timestamp, event string, protocol string, "
    "listener string, client string, session string, topic string, reason string, "
    "messages bigint, bytes bigint, frame binary"
)


def at(seconds: float) -> datetime:
    """Return the time ``seconds`` after the start."""
    return START + timedelta(seconds=seconds)


def message(offset: int, topic: str = "orders", **fields: Any) -> dict[str, Any]:
    """Return a row of the stream of messages; its time is ``seconds`` after the start."""
    seconds = fields.pop("seconds", float(offset))
    return {
        "topic": topic,
        "partition": 0,
        "offset": offset,
        "timestamp": at(seconds),
        "protocol": "cafe",
        "key": b"alice",
        "value": f"message {offset}".encode(),
        "message_id": f"00000000-0000-8000-8000-{offset:012x}",
        **fields,
    }


def event(offset: int, name: str, **fields: Any) -> dict[str, Any]:
    """Return a row of the stream of events."""
    seconds = fields.pop("seconds", float(offset))
    nothing = dict.fromkeys(("session", "topic", "reason", "messages", "bytes", "frame"))
    return {
        "partition": 0,
        "offset": offset,
        "timestamp": at(seconds),
        "event": name,
        "protocol": "cafe",
        "listener": "tcp:7070",
        "client": "alice",
        **nothing,
        **fields,
    }


def frame(spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: str) -> DataFrame:
    """Return the rows as a DataFrame."""
    names = [part.strip().split()[0] for part in schema.split(",")]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)


class Feed:
    """A stream made of files; the rows of each call of ``put`` are one batch."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str) -> None:
        self._schema = schema
        self._spark = spark
        self._directory = directory
        self._count = 0
        directory.mkdir(exist_ok=True)

    @property
    def stream(self) -> DataFrame:
        """The stream."""
        reader = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._directory))

    def put(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a batch."""
        table = frame(self._spark, rows, self._schema).toArrow()
        self._count += 1
        new = self._directory / f".{self._count}"
        pq.write_table(table, new)
        new.rename(self._directory / f"{self._count:04}.parquet")


def table_rows(path: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a Delta table as dictionaries."""
    from deltalake import DeltaTable

    table: pa.Table = DeltaTable(str(path)).to_pyarrow_table()
    return list(table.to_pylist())
