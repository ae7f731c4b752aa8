"""``replay``: publishes an archive again, in order, by time range, at a rate.

The archive is divided into slices. Spark sorts each slice, and the job publishes it in pieces, one
commit each. Checkpoint and broker remember the published pieces: an interrupted replay continues
with the same checkpoint and publishes nothing twice.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pubsub.errors import ConfigurationError
from pubsub.pipeline.argument_values import time_range
from pubsub.pipeline.connector_options import parse_topics
from pubsub.pipeline.job_runner import main as run_alone
from pubsub.pipeline.jobs import job_publisher
from pubsub.pipeline.progress import BatchProgress, Display
from pubsub.pipeline.tables.delta import open_delta
from pubsub.pipeline.tables.spark import Filter, read

NAME = "replay"
_SLICE_MESSAGES = 500_000
_BUCKET_OFFSETS = 10_000
_MESSAGE_COLUMNS = ("topic", "value", "key", "headers")

Slice = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What to replay. ``version`` is that of the table; times are in ISO 8601."""

    table: str
    version: int
    topics: tuple[str, ...] | None
    prefix: str
    since: str | None
    until: str | None
    piece: int

    def filters(self) -> list[Filter]:
        """Return the filters that select the rows."""
        found: list[Filter] = []
        if self.topics is not None:
            found.append(("topic", "in", list(self.topics)))
        if self.since is not None:
            found.append(("timestamp", ">=", datetime.fromisoformat(self.since)))
        if self.until is not None:
            found.append(("timestamp", "<", datetime.fromisoformat(self.until)))
        return found


def slice_key(single_broker: bool) -> Any:
    """Return the column that divides slices: offsets with one broker, else seconds.

    Offsets order the history of one broker, even if its clock was set back. Between brokers time is
    the only order.
    """
    if single_broker:
        return F.floor(F.col("offset") / _BUCKET_OFFSETS)
    return F.unix_seconds("timestamp")


def slices(messages: DataFrame, single_broker: bool, limit: int = _SLICE_MESSAGES) -> list[Slice]:
    """Return ranges of ``slice_key`` in order, of about ``limit`` messages or one key each."""
    counts = messages.groupBy(slice_key(single_broker).alias("key")).count()
    found: list[Slice] = []
    size = limit
    for row in counts.orderBy("key").collect():
        if size + row["count"] > limit:
            found.append((row["key"], row["key"] + 1))
            size = row["count"]
        else:
            found[-1] = (found[-1][0], row["key"] + 1)
            size += row["count"]
    return found


def sorted_messages(
    messages: DataFrame, single_broker: bool, bounds: Slice, prefix: str
) -> DataFrame:
    """Return the messages of a slice in order, with the columns to publish."""
    key = slice_key(single_broker)
    order = ["offset"] if single_broker else ["timestamp", "partition", "offset"]
    chosen = messages.where((key >= bounds[0]) & (key < bounds[1])).orderBy(*order)
    names = [name for name in _MESSAGE_COLUMNS if name in messages.columns]
    return chosen.select(*names).withColumn("topic", F.concat(F.lit(prefix), F.col("topic")))


def slice_filters(single_broker: bool, bounds: Slice) -> list[Filter]:
    """Return filters that skip files without a row of the slice."""
    start, stop = bounds
    if single_broker:
        return [("offset", ">=", start * _BUCKET_OFFSETS), ("offset", "<", stop * _BUCKET_OFFSETS)]
    low, high = (datetime.fromtimestamp(at).astimezone() for at in bounds)
    return [("timestamp", ">=", low), ("timestamp", "<", high)]


class ReplayProgress:
    """The number of the next piece, stored in a file of the checkpoint."""

    def __init__(self, directory: str, settings: ReplaySettings) -> None:
        self._path = Path(directory, "replay.json")
        if self._path.exists():
            known = json.loads(self._path.read_text())
            self._check(known["settings"], settings)
            self.settings = ReplaySettings(**{**known["settings"], "topics": _topics(known)})
            self.query: str = known["query"]
            self.next: int = known["next"]
        else:
            self.settings, self.query, self.next = settings, f"replay-{uuid.uuid4()}", 0
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self.save(0)

    def _check(self, known: dict[str, Any], given: ReplaySettings) -> None:
        for name in ("table", "topics", "prefix", "since", "until"):
            now = json.loads(json.dumps(getattr(given, name)))
            if known[name] != now:
                raise ConfigurationError(
                    f"{self._path} belongs to a replay with {name} {known[name]!r}, not {now!r}; "
                    "use another --checkpoint"
                )

    def save(self, next_piece: int) -> None:
        """Store that every piece before ``next_piece`` is published."""
        self.next = next_piece
        state = {"query": self.query, "next": next_piece, "settings": asdict(self.settings)}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(state))
        os.replace(new, self._path)


def _topics(known: dict[str, Any]) -> tuple[str, ...] | None:
    topics = known["settings"]["topics"]
    return None if topics is None else tuple(topics)


class RateLimit:
    """Limits the rate to ``rate`` messages a second; None stands for no limit."""

    def __init__(self, rate: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._start = clock()
        self._messages = 0

    def wait(self, messages: int, stop: threading.Event) -> None:
        """Return when this number of messages is due, or ``stop`` is set."""
        if self._rate is not None:
            stop.wait(max(self._start + self._messages / self._rate - self._clock(), 0))
        self._messages += messages


def pieces(table: pa.Table, limit: int) -> Iterator[list[pa.RecordBatch]]:
    """Divide ``table`` into pieces of up to ``limit`` rows."""
    for start in range(0, table.num_rows, limit):
        yield table.slice(start, limit).to_batches()


def replay(
    spark: SparkSession,
    progress: ReplayProgress,
    send: Callable[[Sequence[pa.RecordBatch], str, int], None],
    rate_limit: RateLimit,
    stop: threading.Event,
) -> Iterator[tuple[int, int]]:
    """Publish the messages with ``send``; yield the number of each piece and its messages."""
    settings = progress.settings
    filters = settings.filters()
    columns = ["topic", "partition", "offset", "timestamp", "value", "key"]
    schema = open_delta(settings.table, settings.version).schema()
    if any(field.name == "headers" for field in schema.fields):
        columns.append("headers")
    keys = read(
        spark, settings.table, ["partition", "offset", "timestamp"], filters, settings.version
    )
    single_broker = keys.select("partition").distinct().count() <= 1
    number = 0
    for bounds in slices(keys, single_broker):
        slice_rows = [*filters, *slice_filters(single_broker, bounds)]
        messages = read(spark, settings.table, columns, slice_rows, settings.version)
        table = sorted_messages(messages, single_broker, bounds, settings.prefix).toArrow()
        for piece in pieces(table, settings.piece):
            rows = sum(batch.num_rows for batch in piece)
            if number >= progress.next:
                rate_limit.wait(rows, stop)
                if stop.is_set():
                    return
                send(piece, progress.query, number)
                progress.save(number + 1)
                yield number, rows
            number += 1


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job and return the exit code."""
    # Check the times before anything is opened.
    time_range(options)
    topics = parse_topics(options.subscribe)
    table = str(Path(options.table).absolute())
    settings = ReplaySettings(
        table=table,
        version=open_delta(table).version(),
        topics=None if topics is None else tuple(sorted(topics)),
        prefix=options.prefix,
        since=options.since,
        until=options.until,
        piece=min(options.rate or 50_000, 50_000),
    )
    progress = ReplayProgress(options.checkpoint, settings)
    publisher = job_publisher.Publisher(options, "")
    display = Display(sys.stdout, sys.stdout.isatty())
    started = time.monotonic()
    for number, rows in replay(spark, progress, publisher.send, RateLimit(options.rate), stop):
        seconds = time.monotonic() - started
        rate = round((display.rows + rows) / seconds, 1)
        display.show(BatchProgress(number, rows, rate, round(seconds, 3), None, None))
    display.end()
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
