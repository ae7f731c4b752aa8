"""``replay``: an archive back to topics, in order, by time range, at a rate.

The archive is taken in slices, each of them sorted by Spark and published in pieces, one commit a
piece. What has been published is remembered, by the broker too: an interrupted replay that is
started again with the same checkpoint goes on, and publishes nothing twice.
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
from pubsub.pipeline.arguments import between
from pubsub.pipeline.connector_options import parse_topics
from pubsub.pipeline.job_runner import main as run_alone
from pubsub.pipeline.jobs import job_publisher
from pubsub.pipeline.progress import Display, Step
from pubsub.pipeline.tables.spark import Filter, open_delta, read

NAME = "replay"
_SLICE = 500_000
_BUCKET_OFFSETS = 10_000
_MESSAGE = ("topic", "value", "key", "headers")

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is replayed; ``version`` is the table's. Times are ISO 8601."""

    table: str
    version: int
    topics: tuple[str, ...] | None
    prefix: str
    since: str | None
    until: str | None
    piece: int

    def filters(self) -> list[Filter]:
        """What limits the rows."""
        found: list[Filter] = []
        if self.topics is not None:
            found.append(("topic", "in", list(self.topics)))
        if self.since is not None:
            found.append(("timestamp", ">=", datetime.fromisoformat(self.since)))
        if self.until is not None:
            found.append(("timestamp", "<", datetime.fromisoformat(self.until)))
        return found


def position(single: bool) -> Any:
    """What slices are cut by: offsets if there is one broker, else seconds.

    The order within a broker's log is that of its offsets; its clock may have been set back.
    Between brokers there is no other order than time.
    """
    if single:
        return F.floor(F.col("offset") / _BUCKET_OFFSETS)
    return F.unix_seconds("timestamp")


def slices(messages: DataFrame, single: bool, most: int = _SLICE) -> list[Range]:
    """Ranges of ``position``, of about ``most`` messages or one position each, in order."""
    counted = messages.groupBy(position(single).alias("at")).count().orderBy("at").collect()
    found: list[Range] = []
    held = most
    for row in counted:
        if held + row["count"] > most:
            found.append((row["at"], row["at"] + 1))
            held = row["count"]
        else:
            found[-1] = (found[-1][0], row["at"] + 1)
            held += row["count"]
    return found


def ordered(messages: DataFrame, single: bool, within: Range, prefix: str) -> DataFrame:
    """The messages of a slice in order, as they are published."""
    at = position(single)
    order = ["offset"] if single else ["timestamp", "partition", "offset"]
    chosen = messages.where((at >= within[0]) & (at < within[1])).orderBy(*order)
    names = [name for name in _MESSAGE if name in messages.columns]
    return chosen.select(*names).withColumn("topic", F.concat(F.lit(prefix), F.col("topic")))


def bounds(single: bool, within: Range) -> list[Filter]:
    """What lets files without a row of the slice be passed over."""
    start, stop = within
    if single:
        return [("offset", ">=", start * _BUCKET_OFFSETS), ("offset", "<", stop * _BUCKET_OFFSETS)]
    low, high = (datetime.fromtimestamp(at).astimezone() for at in within)
    return [("timestamp", ">=", low), ("timestamp", "<", high)]


class Progress:
    """How far a replay is, in a file of the checkpoint."""

    def __init__(self, directory: str, settings: Settings) -> None:
        self._path = Path(directory, "replay.json")
        if self._path.exists():
            known = json.loads(self._path.read_text())
            self._check(known["settings"], settings)
            self.settings = Settings(**{**known["settings"], "topics": _topics(known)})
            self.query: str = known["query"]
            self.next: int = known["next"]
        else:
            self.settings, self.query, self.next = settings, f"replay-{uuid.uuid4()}", 0
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self.save(0)

    def _check(self, known: dict[str, Any], given: Settings) -> None:
        for name in ("table", "topics", "prefix", "since", "until"):
            now = json.loads(json.dumps(getattr(given, name)))
            if known[name] != now:
                raise ConfigurationError(
                    f"{self._path} is of a replay with {name} {known[name]!r}, not {now!r}; "
                    "give another --checkpoint"
                )

    def save(self, following: int) -> None:
        """Everything before piece number ``following`` is published."""
        self.next = following
        state = {"query": self.query, "next": following, "settings": asdict(self.settings)}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(state))
        os.replace(new, self._path)


def _topics(known: dict[str, Any]) -> tuple[str, ...] | None:
    topics = known["settings"]["topics"]
    return None if topics is None else tuple(topics)


class Pace:
    """Keeps to ``rate`` messages a second; without one, never waits."""

    def __init__(self, rate: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._start = clock()
        self._messages = 0

    def wait(self, messages: int, stop: threading.Event) -> None:
        """Return when it is time for as many more, or ``stop`` is set."""
        if self._rate is not None:
            stop.wait(max(self._start + self._messages / self._rate - self._clock(), 0))
        self._messages += messages


def pieces(table: pa.Table, most: int) -> Iterator[list[pa.RecordBatch]]:
    """``table`` in parts of up to ``most`` rows."""
    for start in range(0, table.num_rows, most):
        yield table.slice(start, most).to_batches()


def replay(
    spark: SparkSession,
    progress: Progress,
    send: Callable[[Sequence[pa.RecordBatch], str, int], None],
    pace: Pace,
    stop: threading.Event,
) -> Iterator[tuple[int, int]]:
    """Publish by ``send``; yields the number of each piece and its messages."""
    settings = progress.settings
    filters = settings.filters()
    columns = ["topic", "partition", "offset", "timestamp", "value", "key"]
    schema = open_delta(settings.table, settings.version).schema()
    if any(each.name == "headers" for each in schema.fields):
        columns.append("headers")
    keys = read(
        spark, settings.table, ["partition", "offset", "timestamp"], filters, settings.version
    )
    single = keys.select("partition").distinct().count() <= 1
    number = 0
    for within in slices(keys, single):
        narrow = [*filters, *bounds(single, within)]
        messages = read(spark, settings.table, columns, narrow, settings.version)
        table = ordered(messages, single, within, settings.prefix).toArrow()
        for piece in pieces(table, settings.piece):
            rows = sum(part.num_rows for part in piece)
            if number >= progress.next:
                pace.wait(rows, stop)
                if stop.is_set():
                    return
                send(piece, progress.query, number)
                progress.save(number + 1)
                yield number, rows
            number += 1


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job; returns the exit code."""
    # A wrong one is told before anything is opened.
    between(options)
    topics = parse_topics(options.subscribe)
    table = str(Path(options.table).absolute())
    settings = Settings(
        table=table,
        version=open_delta(table).version(),
        topics=None if topics is None else tuple(sorted(topics)),
        prefix=options.prefix,
        since=options.since,
        until=options.until,
        piece=min(options.rate or 50_000, 50_000),
    )
    progress = Progress(options.checkpoint, settings)
    publisher = job_publisher.Publisher(options, "")
    display = Display(sys.stdout, sys.stdout.isatty())
    begun = time.monotonic()
    for number, rows in replay(spark, progress, publisher.send, Pace(options.rate), stop):
        taken = time.monotonic() - begun
        rate = round((display.rows + rows) / taken, 1)
        display.show(Step(number, rows, rate, round(taken, 3), None, None))
    display.end()
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
