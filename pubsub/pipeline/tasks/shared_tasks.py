"""Tasks between two shared positions, which any of several brokers can provide.

The messages of a range are the same at every broker, in another order. Those of one run of a broker
have the same order everywhere. So a task that continues at another broker leaves out, of each run,
messages up to the last one that it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pubsub.errors import PubSubError
from pubsub.pipeline.histories.broker_list import BrokerList
from pubsub.pipeline.histories.history import (
    DamagedRange,
    DataLoss,
    HistoryRefused,
    Unreachable,
    WrongHistory,
)
from pubsub.pipeline.histories.retry import Retry, logger
from pubsub.pipeline.options.connector_options import SourceOptions
from pubsub.pipeline.positions.topic_positions import Stretch
from pubsub.pipeline.tasks.planning import Task

# The characters of a message's id that are the same for all messages of a run.
_RUN = 18


@dataclass(frozen=True)
class SharedTask(Task):
    """The messages from the position ``since`` to before ``until``.

    ``broker`` is asked first. The offsets are those of ``planner``: it has no messages of the task
    before ``start``.
    """

    since: str = ""
    until: str = ""
    broker: int = 0
    planner: int = 0


def shared_tasks(brokers: BrokerList, found: Sequence[Task], stretch: Stretch) -> list[SharedTask]:
    """Return the tasks that read ``stretch``; they are divided as ``found`` by offsets."""
    assert stretch.since is not None
    assert stretch.until is not None
    if len(found) > 1 and not brokers.is_exact(stretch.until, stretch.epoch):
        # The end was made at another broker: messages before it may follow any offset of this one.
        found = [replace(found[0], stop=stretch.stop)]
    tasks = []
    since = stretch.since
    for number, one in enumerate(found):
        is_last = number == len(found) - 1
        until = stretch.until if is_last else brokers.position(one.stop, since)
        if until != since:
            tasks.append(
                SharedTask(
                    **{name: getattr(one, name) for name in Task.__dataclass_fields__},
                    since=since,
                    until=until,
                    planner=brokers.planner,
                )
            )
        since = until
    return tasks


def spread(tasks: Sequence[SharedTask], brokers: int) -> list[SharedTask]:
    """Return the tasks with the broker that each of them asks first, in turn."""
    return [replace(task, broker=number % brokers) for number, task in enumerate(tasks)]


class _TaskDamage(PubSubError):
    """A broker cannot read some messages of a task."""

    reason = "damaged"


class _TaskAttempt(NamedTuple):
    """A try to read a task at a broker. ``skips`` messages that the broker does not have."""

    broker: int
    skips: bool


def read_shared_task(
    brokers: BrokerList, task: SharedTask, options: SourceOptions, retry: Retry
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read the messages of a task, each once, with the number of the broker they were read at.

    Raises DataLoss, WrongHistory, HistoryRefused or Unreachable.
    """
    reader = _SharedTaskReader(brokers, task, options)
    count = len(brokers.brokers)
    lacking: dict[int, PubSubError] = {}
    tries = 0
    retry.reset()
    while True:
        attempt = _TaskAttempt((task.broker + tries) % count, len(lacking) == count)
        tries += 1
        try:
            for batch in reader.batches(attempt):
                retry.reset()
                yield attempt.broker, batch
            return
        except Unreachable as error:
            lacking.pop(attempt.broker, None)
            if tries % count == 0:
                retry.wait(error)
            else:
                logger.warning("%s; trying another broker", error)
        except (HistoryRefused, WrongHistory, _TaskDamage) as error:
            if isinstance(error, HistoryRefused) and not error.elsewhere:
                raise
            lacking[attempt.broker] = error
            if attempt.skips:
                retry.wait(Unreachable(str(error)))
            elif len(lacking) == count:
                _report_loss(task, lacking, options.fail_on_data_loss)
            elif tries % count == 0:
                # Those that can be asked lack messages, and the others cannot be reached.
                retry.wait(Unreachable(str(error)))


def _report_loss(task: SharedTask, lacking: dict[int, PubSubError], fail: bool) -> None:
    reasons = "; ".join(dict.fromkeys(map(str, lacking.values())))
    if any(isinstance(error, WrongHistory) for error in lacking.values()):
        raise WrongHistory(reasons)
    text = f"no broker has all messages from {task.since} to {task.until}: {reasons}"
    if fail:
        raise DataLoss(
            f"{text}; set failOnDataLoss=false (jobs: --skip-lost) to skip what is missing"
        )
    logger.warning("%s: skipped", text)


class _SharedTaskReader:
    """Reads a task again and again; messages that it has are left out."""

    def __init__(self, brokers: BrokerList, task: SharedTask, options: SourceOptions) -> None:
        self._brokers = brokers
        self._task = task
        self._options = options
        # The id of the last message of each run.
        self._last: dict[str, str] = {}

    def batches(self, attempt: _TaskAttempt) -> Iterator[pa.RecordBatch]:
        """Yield the messages that no attempt before has had."""
        task = self._task
        start = (task.start, task.epoch) if attempt.broker == task.planner else None
        known = dict(self._last)
        for item in self._brokers.brokers[attempt.broker].read_between(
            self._brokers.shared,
            task.since,
            task.until,
            task.topics,
            self._options.headers,
            attempt.skips,
            start,
        ):
            if isinstance(item, pa.RecordBatch):
                fresh = without(item, known)
                if fresh.num_rows:
                    # Before the yield: a caller that stops here has this batch.
                    self._note(fresh)
                    yield fresh
            elif isinstance(item, DamagedRange) and not attempt.skips:
                # Later messages may be of the same runs, so they must come from elsewhere.
                url = self._brokers.brokers[attempt.broker].url
                raise _TaskDamage(f"offsets {item.start} to {item.stop - 1} at {url} are damaged")

    def _note(self, batch: pa.RecordBatch) -> None:
        ids = batch.column("message_id")
        rows = pa.table({"run": pc.utf8_slice_codeunits(ids, 0, _RUN), "id": ids})
        for row in rows.group_by("run").aggregate([("id", "max")]).to_pylist():
            self._last[row["run"]] = row["id_max"]


def without(batch: pa.RecordBatch, last: dict[str, str]) -> pa.RecordBatch:
    """Return the messages of ``batch`` that are behind the last one of their run."""
    if not last:
        return batch
    ids = batch.column("message_id")
    runs = pc.utf8_slice_codeunits(ids, 0, _RUN)
    known = pa.repeat(pa.scalar(False), len(ids))
    for run, most in last.items():
        known = pc.or_(known, pc.and_(pc.equal(runs, run), pc.less_equal(ids, most)))
    return batch.filter(pc.invert(known))
