"""``replay``: publishes an archive again, in order, by time range, at a rate.

The archive is divided into slices. Spark sorts each slice, and the job publishes it in pieces, one
commit each. Checkpoint and broker remember the published pieces: an interrupted replay continues
with the same checkpoint and publishes nothing twice.
"""

from __future__ import annotations

import argparse
import json
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
from pyspark.sql import SparkSession

from pubsub.broker.topic_space.topic_names import MAX_NAME
from pubsub.durable_names import replace_text
from pubsub.errors import ConfigurationError
from pubsub.pipeline.command_line.argument_values import time_range
from pubsub.pipeline.job_runs.checkpoint_lock import checkpoint_lock
from pubsub.pipeline.job_runs.job_runner import main as run_alone
from pubsub.pipeline.job_runs.progress import BatchProgress, Display
from pubsub.pipeline.jobs import job_publisher
from pubsub.pipeline.jobs.job_source import check_token
from pubsub.pipeline.jobs.replay_slices import SLICE_BYTES, ReplayOrder
from pubsub.pipeline.options.connector_options import Credentials, parse_topics
from pubsub.pipeline.publishing.message_pieces import pieces
from pubsub.pipeline.tables.delta import open_delta
from pubsub.pipeline.tables.location import Location, StorageOptions, table_location
from pubsub.pipeline.tables.partitions import LONG_TOPIC, topic_bucket
from pubsub.pipeline.tables.spark import Filter, read

NAME = "replay"
_PIECE_MESSAGES = 50_000


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The messages to replay. ``version`` is that of the table; times are in ISO 8601.

    A piece has up to ``piece`` messages and ``piece_bytes``; None, in the checkpoints of earlier
    versions, stands for no limit.
    """

    table: str
    version: int
    topics: tuple[str, ...] | None
    prefix: str
    since: str | None
    until: str | None
    piece: int
    piece_bytes: int | None = None

    def filters(self) -> list[Filter]:
        """Return the filters that select the rows."""
        found: list[Filter] = []
        if self.topics is not None:
            found.append(("topic", "in", _names_in_tables(self.topics)))
        if self.since is not None:
            found.append(("timestamp", ">=", datetime.fromisoformat(self.since)))
        if self.until is not None:
            found.append(("timestamp", "<", datetime.fromisoformat(self.until)))
        return found


def _names_in_tables(topics: Sequence[str]) -> list[str]:
    """Return the values of the column ``topic`` that stand for ``topics``.

    A table that is not partitioned by topic, or is of an earlier version, has long names as they
    are.
    """
    return sorted({name for topic in topics for name in (topic, topic_bucket(topic))})


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
        replace_text(self._path, json.dumps(state))


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


def replay(
    spark: SparkSession,
    progress: ReplayProgress,
    send: Callable[[Sequence[pa.RecordBatch], str, int], None],
    rate_limit: RateLimit,
    stop: threading.Event,
    storage_options: StorageOptions = (),
) -> Iterator[tuple[int, int]]:
    """Publish the messages with ``send``; yield the number of each piece and its messages."""
    settings = progress.settings
    archive = Location.parse(settings.table, storage_options)
    filters = settings.filters()
    columns = ["topic", "partition", "offset", "timestamp", "value", "key"]
    schema = open_delta(archive, settings.version).schema()
    names = [field.name for field in schema.fields]
    columns += [name for name in ("headers", LONG_TOPIC) if name in names]
    sized = ["partition", "offset", "timestamp"]
    if settings.piece_bytes is not None:
        sized = columns
    keys = read(spark, archive, sized, filters, settings.version)
    order = ReplayOrder(keys.select("partition").distinct().count() <= 1)
    slice_bytes = None if settings.piece_bytes is None else SLICE_BYTES
    number = 0
    for each in order.slices(keys, most_bytes=slice_bytes):
        rows_of_slice = [*filters, *order.filters(each)]
        messages = read(spark, archive, columns, rows_of_slice, settings.version)
        table = order.sorted_messages(messages, each, settings.prefix).toArrow()
        check_names(table, settings.prefix)
        for piece in pieces(table, settings.piece, settings.piece_bytes):
            rows = sum(batch.num_rows for batch in piece)
            if number >= progress.next:
                rate_limit.wait(rows, stop)
                if stop.is_set():
                    return
                send(piece, progress.query, number)
                progress.save(number + 1)
                yield number, rows
            number += 1


def check_names(messages: pa.Table, prefix: str) -> None:
    """Raise ConfigurationError if the name of a topic is too long with its ``prefix``.

    The broker would refuse the messages, too, but it does not say of which topic they are.
    """
    for name in messages["topic"].unique().to_pylist() if prefix else ():
        if len(name.encode()) > MAX_NAME:
            raise ConfigurationError(
                f"--prefix: topic {name.removeprefix(prefix)!r} has more than {MAX_NAME} bytes "
                "with the prefix; use a shorter one, or choose other topics with --subscribe"
            )


def check(options: argparse.Namespace) -> None:
    """Check the options. Raises ConfigurationError, StorageError and OSError."""
    time_range(options)
    parse_topics(options.subscribe)
    job_publisher.broker_urls(options)
    check_token(Credentials(file=options.token_file))
    open_delta(table_location(options))


def run(spark: SparkSession, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the job and return the exit code."""
    topics = parse_topics(options.subscribe)
    archive = table_location(options)
    publisher = job_publisher.JobPublisher(options, "")
    settings = ReplaySettings(
        table=archive.url,
        version=open_delta(archive).version(),
        topics=None if topics is None else tuple(sorted(topics)),
        prefix=options.prefix,
        since=options.since,
        until=options.until,
        piece=min(options.rate or _PIECE_MESSAGES, _PIECE_MESSAGES),
        piece_bytes=options.max_bytes or publisher.batch_bytes(),
    )
    with checkpoint_lock(options.checkpoint):
        progress = ReplayProgress(options.checkpoint, settings)
        _publish(spark, progress, publisher, options.rate, archive.options, stop)
    return 0


def _publish(
    spark: SparkSession,
    progress: ReplayProgress,
    publisher: job_publisher.JobPublisher,
    rate: int | None,
    storage_options: StorageOptions,
    stop: threading.Event,
) -> None:
    """Publish what is left, and show the progress."""
    display = Display(sys.stdout, sys.stdout.isatty())
    started = time.monotonic()
    published = replay(spark, progress, publisher.send, RateLimit(rate), stop, storage_options)
    for number, rows in published:
        seconds = time.monotonic() - started
        speed = round((display.rows + rows) / seconds, 1)
        display.show(BatchProgress(number, rows, speed, round(seconds, 3), None, None))
    display.end()


if __name__ == "__main__":
    sys.exit(run_alone(NAME))
