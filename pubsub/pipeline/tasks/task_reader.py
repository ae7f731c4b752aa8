"""Reads one task: a range of offsets as record batches, across restarts of the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pubsub.pipeline.histories.broker_list import BrokerList
from pubsub.pipeline.histories.history import (
    DamagedRange,
    DataLoss,
    ExpiredBefore,
    History,
    Unreachable,
)
from pubsub.pipeline.histories.retry import Retry, logger
from pubsub.pipeline.options.connector_options import EVENTS, SourceOptions
from pubsub.pipeline.options.schemas import TIMESTAMP_TYPE
from pubsub.pipeline.tasks import event_rows
from pubsub.pipeline.tasks.planning import Task
from pubsub.pipeline.tasks.shared_tasks import SharedTask, read_shared_task

# Kafka's number for a timestamp that the broker sets.
_LOG_APPEND_TIME = 1


def read_task(
    history: History, task: Task, options: SourceOptions, schema: pa.Schema, retry: Retry
) -> Iterator[pa.RecordBatch]:
    """Read the messages of a task, each once.

    Raises DataLoss, WrongHistory, Rejected or Unreachable.
    """
    if isinstance(task, SharedTask):
        assert isinstance(history, BrokerList)
        for number, batch in read_shared_task(history, task, options, retry):
            yield _to_spark_columns(batch, number, options.stream, schema)
        return
    progress = _TaskProgress(history, task, options)
    retry.reset()
    while progress.next_offset < task.stop:
        try:
            for batch in progress.batches():
                retry.reset()
                yield _to_spark_columns(batch, task.partition, options.stream, schema)
        except Unreachable as error:
            retry.wait(error)
    if progress.lost_offsets:
        logger.warning(
            "partition %d: %d offsets lost in total", task.partition, progress.lost_offsets
        )


class _TaskProgress:
    """The next offset of a task, and the number of offsets it has lost."""

    def __init__(self, history: History, task: Task, options: SourceOptions) -> None:
        self._history = history
        self._task = task
        self._options = options
        self.next_offset = task.start
        self.lost_offsets = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rest of the task; ``next_offset`` is after the last batch that was taken."""
        task = self._task
        for item in self._history.read(
            self.next_offset, task.stop, task.topics, self._options.headers, task.epoch
        ):
            if not isinstance(item, pa.RecordBatch):
                self._skip_gap(item)
            elif item.num_rows:
                # Before the yield: a caller that stops here has this batch.
                self.next_offset = item.column("offset")[-1].as_py() + 1
                yield item
        self.next_offset = task.stop

    def _skip_gap(self, gap: DamagedRange | ExpiredBefore) -> None:
        task = self._task
        if isinstance(gap, ExpiredBefore):
            start, stop, why = self.next_offset, min(gap.first, task.stop), "have expired"
        else:
            start, stop = max(gap.start, self.next_offset), min(gap.stop, task.stop)
            why = "are damaged"
        report_loss(task.partition, start, stop, why, self._options.fail_on_data_loss)
        self.lost_offsets += max(0, stop - start)
        self.next_offset = max(self.next_offset, stop)


def report_loss(partition: int, start: int, stop: int, why: str, fail: bool) -> None:
    """Log the loss of offsets, or raise DataLoss if ``fail`` is set."""
    text = f"partition {partition}: offsets {start} to {stop - 1} {why}"
    if fail:
        raise DataLoss(f"{text}; set failOnDataLoss=false (jobs: --skip-lost) to skip them")
    logger.warning("%s: %d skipped", text, stop - start)


def _to_spark_columns(
    batch: pa.RecordBatch, partition: int, stream: str, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the batch with the columns in the order of ``schema`` and with its partition."""
    if partition:
        index = batch.schema.get_field_index("partition")
        number = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
        batch = batch.set_column(index, batch.schema.field(index), number)
    if stream == EVENTS:
        return event_rows.decode_events(batch, schema)
    if TIMESTAMP_TYPE in schema.names:
        kind = pa.repeat(pa.scalar(_LOG_APPEND_TIME, pa.int32()), batch.num_rows)
        batch = batch.append_column(TIMESTAMP_TYPE, kind)
    columns = [batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
