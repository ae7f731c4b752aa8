"""The data source ``pubsub``: what Spark calls, in the driver and in the workers."""

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
from pubsub.pipeline.batch_limits import Amount, fit, shares
from pubsub.pipeline.connector_options import (
    EARLIEST,
    EVENTS,
    LATEST,
    MESSAGES,
    SourceOptions,
    Start,
)
from pubsub.pipeline.connector_options import source_options as parse
from pubsub.pipeline.logs import OTHER_LOG, Log, WrongLog
from pubsub.pipeline.offsets import (
    Bounds,
    Offsets,
    Position,
    from_json,
    resolve,
    to_json,
)
from pubsub.pipeline.open_logs import open_logs
from pubsub.pipeline.planning import Subscription, Task, plan
from pubsub.pipeline.retry import Retry, logger
from pubsub.pipeline.schemas import arrow_schema, check_columns, schema_of
from pubsub.pipeline.sink import BatchWriter, StreamWriter, make_target
from pubsub.pipeline.task_reader import lose, read_task


class PubSubSource(DataSource):
    """The format ``pubsub``; its options are in ``pubsub.pipeline.connector_options``."""

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` takes."""
        return "pubsub"

    def schema(self) -> StructType:
        """The columns, by options ``stream`` and ``includeHeaders``."""
        events = self.options.get("stream", MESSAGES).lower() == EVENTS
        headers = self.options.get("includeheaders", "").lower() == "true"
        return schema_of(EVENTS if events else MESSAGES, headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what there is now."""
        return BatchReader(_parsed(self.options, schema, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads what there is and what comes."""
        return StreamReader(_parsed(self.options, schema, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Publishes a frame."""
        return BatchWriter(make_target(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Publishes a stream."""
        return StreamWriter(make_target(self.options, schema, overwrite))


def _parsed(given: Any, schema: StructType, streaming: bool) -> SourceOptions:
    options = parse(given, streaming)
    check_columns(schema, schema_of(options.stream, options.headers))
    return options


class _Reader:
    """What both readers do. Pickled into every task: it holds no connection."""

    def __init__(
        self, options: SourceOptions, schema: StructType, patience: Retry | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._patience = patience or Retry()
        self._subscription = Subscription(options)
        self._opened: list[Log] | None = None

    def _logs(self) -> list[Log]:
        if self._opened is None:
            self._opened = open_logs(self._options)
        return self._opened

    def _bounds(self, timestamp: int | None = None) -> list[Bounds]:
        return [self._patience.call(partial(log.bounds, timestamp)) for log in self._logs()]

    def _places(self, start: Start | None, default: str) -> Offsets:
        """Where the query starts."""
        timestamp = self._options.starting_timestamp
        if timestamp is not None:
            return {
                number: Position(log.at, log.epoch)
                for number, log in enumerate(self._bounds(timestamp))
            }
        return resolve(default if start is None else start, self._bounds(), default)

    def _tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        tasks: list[Task] = []
        for number, log in enumerate(self._logs()):
            begin = start[number]
            if begin.next >= end[number].next:
                continue
            tasks += self._patience.call(partial(self._tasks_of, number, log, begin, end[number]))
        return tasks

    def _tasks_of(self, number: int, log: Log, begin: Position, end: Position) -> list[Task]:
        if begin.epoch != end.epoch:
            log.check(begin.next, begin.epoch)
        topics = self._subscription.topics(log, begin.next, end.next)
        whole = Task(number, begin.next, end.next, end.epoch, topics)
        return plan(log, whole, self._subscription, self._options.rows_per_task)

    def _present(self, start: Offsets, end: Offsets) -> Offsets:
        """``start`` without what has expired since; raises DataLoss if that is an error."""
        bounds = self._bounds()
        check_logs(start, bounds)
        fail = self._options.fail_on_data_loss
        present = dict(start)
        for number, position in start.items():
            stop = min(bounds[number].first, end[number].next)
            if position.next < stop:
                lose(number, position.next, stop, "have expired", fail)
                present[number] = Position(stop, bounds[number].epoch)
        return present

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one task, in a worker."""
        assert isinstance(partition, Task)
        log = self._logs()[partition.partition]
        yield from read_task(log, partition, self._options, arrow_schema(self._schema), Retry())

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay where they are.
        return {**self.__dict__, "_opened": None}


class BatchReader(_Reader, DataSourceReader):
    """What is there when the plan is made: from ``startingOffsets`` to ``endingOffsets``."""

    def partitions(self) -> list[InputPartition]:
        """The tasks. Raises PubSubError."""
        start = self._places(self._options.starting, EARLIEST)
        ending = LATEST if self._options.ending is None else self._options.ending
        end = resolve(ending, self._bounds(), LATEST)
        # One without a single row is what stands for none.
        return list(self._tasks(self._present(start, end), end)) or [_NOTHING]


_NOTHING = Task(0, 0, 0, "", None)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What is there and what comes, a batch at a time."""

    _target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        return to_json(self._places(self._options.starting, LATEST))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; both limits hold if both are given."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends."""
        bounds = self._bounds()
        begin = self._given(start)
        check_logs(begin, bounds)
        ends = {number: log.next for number, log in enumerate(bounds)}
        if self._target is not None:
            ends = {number: min(ends[number], at.next) for number, at in self._target.items()}
        firsts = {
            number: min(max(position.next, bounds[number].first), ends[number])
            for number, position in begin.items()
        }
        stops = self._admitted(firsts, ends, limit)
        return to_json(
            {
                # With its own epoch: what has not moved has to be equal.
                number: position
                if stops[number] <= position.next
                else Position(stops[number], bounds[number].epoch)
                for number, position in begin.items()
            }
        )

    def _admitted(
        self, starts: dict[int, int], ends: dict[int, int], limit: ReadLimit
    ) -> dict[int, int]:
        backlogs = {number: ends[number] - start for number, start in starts.items()}
        total = sum(backlogs.values())
        stops = dict(ends)
        if isinstance(limit, ReadAllAvailable) or total <= 0:
            return stops
        if isinstance(limit, ReadMaxRows):
            for number, rows in shares(limit.max_rows, backlogs).items():
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
        return fit(lambda a, b: self._amount(number, a, b).rows, start, end, rows)

    def _fit_bytes(self, number: int, start: int, end: int, nbytes: int) -> int:
        return fit(lambda a, b: self._amount(number, a, b).nbytes, start, end, nbytes)

    def _amount(self, number: int, start: int, stop: int) -> Amount:
        log = self._logs()[number]
        return self._patience.call(lambda: self._subscription.amount(log, start, stop))

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is for another run."""
        self._target = {
            number: Position(log.next, log.epoch) for number, log in enumerate(self._bounds())
        }

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the logs end, for the query's progress."""
        return to_json(resolve(LATEST, self._bounds(), LATEST))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch. Raises DataLoss if a part of it is not there any more."""
        stop = self._given(end)
        return self._tasks(self._present(self._given(start), stop), stop)

    def commit(self, end: dict[str, Any]) -> None:
        """Have the brokers know how far the query is; it goes on if they do not want to."""
        name = self._options.reader_name or reader_name(self._options)
        for number, position in self._given(end).items():
            try:
                self._logs()[number].report(name, position.next, position.epoch)
            except PubSubError as error:
                logger.warning("partition %d: the position was not reported: %s", number, error)

    def _given(self, offsets: dict[str, Any]) -> Offsets:
        return from_json(offsets, self._options.partitions)


def check_logs(positions: Offsets, bounds: Sequence[Bounds]) -> None:
    """Raises WrongLog if a log ends before where the query was."""
    for number, position in positions.items():
        if position.next > bounds[number].next:
            raise WrongLog(OTHER_LOG.format(f"partition {number}", position.next))


def reader_name(options: SourceOptions) -> str:
    """A name for a query that was given none: the same for the same subscription."""
    what = [options.stream, sorted(options.topics or ()), options.pattern]
    return f"spark-{hashlib.sha256(repr(what).encode()).hexdigest()[:12]}"
