"""One task: a range of offsets as record batches, across restarts of the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pubsub.pipeline import event_rows
from pubsub.pipeline.connector_options import EVENTS, SourceOptions
from pubsub.pipeline.logs import Damage, DataLoss, Expired, Log, Part, Unreachable
from pubsub.pipeline.planning import Task
from pubsub.pipeline.retry import Retry, logger


def read_task(
    log: Log, task: Task, options: SourceOptions, schema: pa.Schema, patience: Retry
) -> Iterator[pa.RecordBatch]:
    """The messages of a task, each once. Raises DataLoss, WrongLog, Rejected or Unreachable."""
    reading = _Reading(log, task, options)
    patience.progress()
    while reading.at < task.stop:
        try:
            for batch in reading.parts():
                patience.progress()
                yield _shaped(batch, task.partition, options.stream, schema)
        except Unreachable as error:
            patience.wait(error)
    if reading.lost:
        logger.warning("partition %d: %d offsets lost in all", task.partition, reading.lost)


class _Reading:
    """How far a task is, and what of it was not there."""

    def __init__(self, log: Log, task: Task, options: SourceOptions) -> None:
        self._log = log
        self._task = task
        self._options = options
        self.at = task.start
        self.lost = 0

    def parts(self) -> Iterator[pa.RecordBatch]:
        """What is left to read; ``at`` is where to go on after what was taken of it."""
        task = self._task
        for part in self._log.read(
            self.at, task.stop, task.topics, self._options.headers, task.epoch
        ):
            if not isinstance(part, pa.RecordBatch):
                self._miss(part)
            elif part.num_rows:
                # Before it is given away: whoever stops reading here has had it.
                self.at = part.column("offset")[-1].as_py() + 1
                yield part
        self.at = task.stop

    def _miss(self, part: Part) -> None:
        task = self._task
        if isinstance(part, Expired):
            start, stop, why = self.at, min(part.first, task.stop), "have expired"
        else:
            assert isinstance(part, Damage)
            start, stop, why = max(part.start, self.at), min(part.stop, task.stop), "are damaged"
        lose(task.partition, start, stop, why, self._options.fail_on_data_loss)
        self.lost += max(0, stop - start)
        self.at = max(self.at, stop)


def lose(partition: int, start: int, stop: int, why: str, fail: bool) -> None:
    """Tell that offsets are not there; raises DataLoss if that is to end the query."""
    text = f"partition {partition}: offsets {start} to {stop - 1} {why}"
    if fail:
        raise DataLoss(f"{text}; with option failOnDataLoss=false they would be passed over")
    logger.warning("%s: %d passed over", text, stop - start)


def _shaped(
    batch: pa.RecordBatch, partition: int, stream: str, schema: pa.Schema
) -> pa.RecordBatch:
    """The batch as Spark wants it: these columns in this order, and the partition's number."""
    if partition:
        place = batch.schema.get_field_index("partition")
        number = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
        batch = batch.set_column(place, batch.schema.field(place), number)
    if stream == EVENTS:
        return event_rows.decode(batch, schema)
    columns = [batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
