"""The data source ``pubsub``: the classes that Spark calls in the driver and in the workers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pubsub.errors import PubSubError
from pubsub.pipeline.batch_limits import Amount, divide_limit, fitting_stop
from pubsub.pipeline.connector_options import (
    EARLIEST,
    EVENTS,
    LATEST,
    MESSAGES,
    SourceOptions,
    Start,
    source_options,
)
from pubsub.pipeline.history import OTHER_HISTORY, History, WrongHistory
from pubsub.pipeline.offsets import (
    Offsets,
    PartitionBounds,
    Position,
    from_json,
    resolve_offsets,
    to_json,
)
from pubsub.pipeline.open_histories import open_histories
from pubsub.pipeline.planning import Subscription, Task, plan_tasks
from pubsub.pipeline.retry import Retry, logger
from pubsub.pipeline.schemas import arrow_schema, check_source_columns, schema_of
from pubsub.pipeline.sink import BatchWriter, StreamWriter, make_sink
from pubsub.pipeline.task_reader import read_task, report_loss


class PubSubSource(DataSource):
    """The format ``pubsub``. For its options, see ``pubsub.pipeline.connector_options``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pubsub"

    def schema(self) -> StructType:
        """Return the schema for the options ``stream`` and ``includeHeaders``."""
        events = self.options.get("stream", MESSAGES).lower() == EVENTS
        headers = self.options.get("includeheaders", "").lower() == "true"
        return schema_of(EVENTS if events else MESSAGES, headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the messages that exist now."""
        return BatchReader(_parse_options(self.options, schema, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of existing and new messages."""
        return StreamReader(_parse_options(self.options, schema, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that publishes a frame."""
        return BatchWriter(make_sink(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer that publishes a stream."""
        return StreamWriter(make_sink(self.options, schema, overwrite))


def _parse_options(given: Any, schema: StructType, streaming: bool) -> SourceOptions:
    options = source_options(given, streaming)
    check_source_columns(schema, schema_of(options.stream, options.headers))
    return options


class _SourceReader:
    """The base of both readers. Pickled into every task, without connections."""

    def __init__(
        self, options: SourceOptions, schema: StructType, retry: Retry | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._retry = retry or Retry()
        self._subscription = Subscription(options)
        self._opened: list[History] | None = None

    def _histories(self) -> list[History]:
        if self._opened is None:
            self._opened = open_histories(self._options)
        return self._opened

    def _bounds(self, timestamp: int | None = None) -> list[PartitionBounds]:
        return [
            self._retry.call(partial(history.bounds, timestamp)) for history in self._histories()
        ]

    def _first_offsets(self, start: Start | None, default: str) -> Offsets:
        """Return the offsets where the query starts."""
        timestamp = self._options.starting_timestamp
        if timestamp is not None:
            return {
                number: Position(bounds.offset_at_time, bounds.epoch)
                for number, bounds in enumerate(self._bounds(timestamp))
            }
        return resolve_offsets(default if start is None else start, self._bounds(), default)

    def _tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        tasks: list[Task] = []
        for number, history in enumerate(self._histories()):
            first, last = start[number], end[number]
            if first.next < last.next:
                make = partial(self._partition_tasks, number, history, first, last)
                tasks += self._retry.call(make)
        return tasks

    def _partition_tasks(
        self, number: int, history: History, start: Position, end: Position
    ) -> list[Task]:
        if start.epoch != end.epoch:
            history.check(start.next, start.epoch)
        topics = self._subscription.topics(history, start.next, end.next)
        whole = Task(number, start.next, end.next, end.epoch, topics)
        return plan_tasks(history, whole, self._subscription, self._options.rows_per_task)

    def _without_expired(self, start: Offsets, end: Offsets) -> Offsets:
        """Return ``start`` without expired messages. Raises DataLoss if they are an error."""
        bounds = self._bounds()
        check_histories(start, bounds)
        fail = self._options.fail_on_data_loss
        present = dict(start)
        for number, position in start.items():
            stop = min(bounds[number].first, end[number].next)
            if position.next < stop:
                report_loss(number, position.next, stop, "have expired", fail)
                present[number] = Position(stop, bounds[number].epoch)
        return present

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the batches of one task; runs in a worker."""
        assert isinstance(partition, Task)
        history = self._histories()[partition.partition]
        schema = arrow_schema(self._schema)
        yield from read_task(history, partition, self._options, schema, Retry())

    def __getstate__(self) -> dict[str, Any]:
        # Connections cannot be pickled.
        return {**self.__dict__, "_opened": None}


class BatchReader(_SourceReader, DataSourceReader):
    """Reads from ``startingOffsets`` to ``endingOffsets``, resolved when Spark plans the query."""

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises PubSubError."""
        start = self._first_offsets(self._options.starting, EARLIEST)
        ending = LATEST if self._options.ending is None else self._options.ending
        end = resolve_offsets(ending, self._bounds(), LATEST)
        # Spark requires at least one task.
        return list(self._tasks(self._without_expired(start, end), end)) or [_EMPTY_TASK]


_EMPTY_TASK = Task(0, 0, 0, "", None)


class StreamReader(_SourceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads existing and new messages, a batch at a time."""

    _available_now: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets where a query without a checkpoint starts."""
        return to_json(self._first_offsets(self._options.starting, LATEST))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit in the options. If both limits are given, both apply."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch."""
        bounds = self._bounds()
        positions = self._parse_offsets(start)
        check_histories(positions, bounds)
        ends = {number: partition.next for number, partition in enumerate(bounds)}
        if self._available_now is not None:
            ends = {
                number: min(ends[number], position.next)
                for number, position in self._available_now.items()
            }
        firsts = {
            number: min(max(position.next, bounds[number].first), ends[number])
            for number, position in positions.items()
        }
        stops = self._batch_stops(firsts, ends, limit)
        return to_json(
            {
                # With the old epoch, as Spark compares the offsets to find out whether they have
                # moved.
                number: position
                if stops[number] <= position.next
                else Position(stops[number], bounds[number].epoch)
                for number, position in positions.items()
            }
        )

    def _batch_stops(
        self, starts: dict[int, int], ends: dict[int, int], limit: ReadLimit
    ) -> dict[int, int]:
        backlogs = {number: ends[number] - start for number, start in starts.items()}
        total = sum(backlogs.values())
        stops = dict(ends)
        if isinstance(limit, ReadAllAvailable) or total <= 0:
            return stops
        if isinstance(limit, ReadMaxRows):
            for number, rows in divide_limit(limit.max_rows, backlogs).items():
                stops[number] = self._fit_rows(number, starts[number], ends[number], rows)
        nbytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if nbytes is not None:
            for number, backlog in backlogs.items():
                share = nbytes * backlog // total
                stops[number] = self._fit_bytes(number, starts[number], stops[number], share)
        return stops

    def _fit_rows(self, number: int, start: int, end: int, rows: int) -> int:
        if rows <= 0 or not self._subscription.selective:
            return min(start + rows, end)
        return fitting_stop(lambda a, b: self._amount(number, a, b).rows, start, end, rows)

    def _fit_bytes(self, number: int, start: int, end: int, nbytes: int) -> int:
        return fitting_stop(lambda a, b: self._amount(number, a, b).nbytes, start, end, nbytes)

    def _amount(self, number: int, start: int, stop: int) -> Amount:
        history = self._histories()[number]
        return self._retry.call(lambda: self._subscription.amount(history, start, stop))

    def prepareForTriggerAvailableNow(self) -> None:
        """Leave messages that arrive from now on to the next run."""
        self._available_now = {
            number: Position(bounds.next, bounds.epoch)
            for number, bounds in enumerate(self._bounds())
        }

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the ends of the histories, for the progress of the query."""
        return to_json(resolve_offsets(LATEST, self._bounds(), LATEST))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Raises DataLoss if some of its messages no longer exist."""
        stop = self._parse_offsets(end)
        return self._tasks(self._without_expired(self._parse_offsets(start), stop), stop)

    def commit(self, end: dict[str, Any]) -> None:
        """Store the position of the query at the brokers. A failure is only logged."""
        name = self._options.reader_name or default_reader_name(self._options)
        for number, position in self._parse_offsets(end).items():
            try:
                self._histories()[number].report_position(name, position.next, position.epoch)
            except PubSubError as error:
                logger.warning("partition %d: cannot report the position: %s", number, error)

    def _parse_offsets(self, offsets: dict[str, Any]) -> Offsets:
        return from_json(offsets, self._options.partitions)


def check_histories(positions: Offsets, bounds: Sequence[PartitionBounds]) -> None:
    """Raise WrongHistory if a history ends before the position of the query."""
    for number, position in positions.items():
        if position.next > bounds[number].next:
            raise WrongHistory(OTHER_HISTORY.format(f"partition {number}", position.next))


def default_reader_name(options: SourceOptions) -> str:
    """Return a reader name for a query without one, the same for the same subscription."""
    subscription = [options.stream, sorted(options.topics or ()), options.pattern]
    return f"spark-{hashlib.sha256(repr(subscription).encode()).hexdigest()[:12]}"
