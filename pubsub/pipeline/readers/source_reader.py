"""The base of the readers of the source: their histories, and the tasks of their batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pubsub.pipeline.histories.history import OTHER_HISTORY, History, PartitionBounds, WrongHistory
from pubsub.pipeline.histories.open_histories import open_histories
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.histories.topic_amounts import amount_of, requested_topics
from pubsub.pipeline.options.connector_options import SourceOptions
from pubsub.pipeline.options.offset_options import Start
from pubsub.pipeline.options.schemas import arrow_schema
from pubsub.pipeline.options.topic_selection import TopicSelection
from pubsub.pipeline.positions.offsets import Offsets
from pubsub.pipeline.positions.topic_positions import Stretch
from pubsub.pipeline.positions.topic_starts import TopicStarts, check_partitions
from pubsub.pipeline.tasks.planning import Task, plan_tasks
from pubsub.pipeline.tasks.task_reader import read_task, report_loss


class SourceReader:
    """The base of both readers. Pickled into every task, without connections."""

    def __init__(
        self, options: SourceOptions, schema: StructType, retry: Retry | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._retry = retry or Retry()
        self._opened: list[History] | None = None

    def _histories(self) -> list[History]:
        if self._opened is None:
            self._opened = open_histories(self._options)
        return self._opened

    def _worker_histories(self) -> list[History]:
        if self._opened is None:
            # The query was planned with the token.
            self._opened = open_histories(self._options, running=True)
        return self._opened

    def _bounds(self, timestamp: int | None = None) -> list[PartitionBounds]:
        return [
            self._retry.call(partial(history.bounds, timestamp)) for history in self._histories()
        ]

    def _places(
        self, start: Start | None, timestamp: int | None, default: str
    ) -> list[TopicStarts]:
        """Return where topics begin, or end, in each partition. Raises ConfigurationError."""
        if isinstance(start, dict):
            check_partitions(start, self._options.partitions)
        return [
            TopicStarts(number, start, default, bounds, timestamp is not None)
            for number, bounds in enumerate(self._bounds(timestamp))
        ]

    def _tasks(self, found: Sequence[Stretch]) -> list[Task]:
        present = self._without_expired(found)
        tasks: list[Task] = []
        for stretch, parts in zip(present, self._parts(present), strict=True):
            tasks += self._retry.call(partial(self._stretch_tasks, stretch, parts))
        return tasks

    def _parts(self, found: Sequence[Stretch]) -> list[int]:
        """Return into how many tasks each stretch is divided at least, in proportion to bytes."""
        wanted = self._options.min_partitions
        if wanted <= len(found):
            return [1] * len(found)
        sizes = [self._retry.call(partial(self._size, one)) for one in found]
        total = max(sum(sizes), 1)
        return [max(1, -(-wanted * size // total)) for size in sizes]

    def _size(self, stretch: Stretch) -> int:
        history = self._histories()[stretch.partition]
        return amount_of(stretch.reads, history, stretch.start, stretch.stop).nbytes

    def _stretch_tasks(self, stretch: Stretch, parts: int) -> list[Task]:
        history, reads = self._histories()[stretch.partition], stretch.reads
        start, stop = stretch.start, stretch.stop
        topics = requested_topics(reads, history, start, stop)
        whole = Task(stretch.partition, start, stop, stretch.epoch, topics)
        return plan_tasks(history, whole, reads, self._options.rows_per_task, parts)

    def _without_expired(self, found: Sequence[Stretch]) -> list[Stretch]:
        """Return the stored rest of the stretches. Raises DataLoss if a loss is an error."""
        bounds = self._bounds()
        fail = self._options.fail_on_data_loss
        present = []
        for one in found:
            first = min(bounds[one.partition].first, one.stop)
            if one.start < first:
                lost = max(one.start, self._quiet_until(one, first))
                if lost < first:
                    report_loss(one.partition, lost, first, "have expired", fail)
                one = replace(one, start=first)
            if one.start < one.stop:
                present.append(one)
        return present

    def _quiet_until(self, stretch: Stretch, first: int) -> int:
        """Return an offset before which the stretch is known to have had no messages."""
        return stretch.start

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the batches of one task; runs in a worker."""
        assert isinstance(partition, Task)
        history = self._worker_histories()[partition.partition]
        schema = arrow_schema(self._schema)
        yield from read_task(history, partition, self._options, schema, Retry())

    def __getstate__(self) -> dict[str, Any]:
        # Connections cannot be pickled.
        return {**self.__dict__, "_opened": None}


def check_histories(positions: Offsets, bounds: Sequence[PartitionBounds]) -> None:
    """Raise WrongHistory if a history ends before the position of the query."""
    for number, position in positions.items():
        if position.next > bounds[number].next:
            raise WrongHistory(OTHER_HISTORY.format(f"partition {number}", position.next))


def snapshot_stretches(
    starts: Sequence[TopicStarts], ends: Sequence[TopicStarts], options: SourceOptions
) -> list[Stretch]:
    """Return the plan of a batch query: the topics with offsets of their own, and the others."""
    found = []
    for first, last in zip(starts, ends, strict=True):
        number = first.number
        reads = options.subscription(number).wanting(options.region.topics)
        named = frozenset(filter(reads.covers, first.named | last.named))
        parts = [(reads.without(named), first.of(), last.of())]
        parts += [
            (TopicSelection(frozenset({name}), None), first.of(name), last.of(name))
            for name in sorted(named)
        ]
        found += [
            Stretch(number, start, stop, last.bounds.epoch, topics)
            for topics, start, stop in parts
            if start < stop and not topics.is_empty
        ]
    return found
