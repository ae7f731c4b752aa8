"""The readers of the source for brokers that share a history.

One broker at a time plans; the tasks are spread over all of them. Positions are shared positions,
so another broker can continue at any time. See ``pubsub/pipeline/histories/broker_list.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.histories.broker_list import BrokerList, same_place
from pubsub.pipeline.histories.history import OtherBroker, PartitionBounds, Unreachable
from pubsub.pipeline.histories.retry import logger
from pubsub.pipeline.positions.offsets import Offsets, PartitionPosition, to_json
from pubsub.pipeline.positions.shared_offsets import converted, located, shared_position
from pubsub.pipeline.positions.topic_positions import Stretch
from pubsub.pipeline.readers.batch_reader import BatchReader
from pubsub.pipeline.readers.source_reader import SourceReader
from pubsub.pipeline.readers.stream_reader import StreamReader
from pubsub.pipeline.tasks.planning import Task
from pubsub.pipeline.tasks.shared_tasks import SharedTask, shared_tasks, spread

_Result = TypeVar("_Result")


class SharedPlanning(SourceReader):
    """The base of readers of batches and of streams."""

    @property
    def _brokers(self) -> BrokerList:
        (found,) = self._histories()
        assert isinstance(found, BrokerList)
        return found

    def _planned(self, plan: Callable[[], _Result]) -> _Result:
        """Return the result of ``plan``, which is begun again when another broker plans."""
        # Of its own, as calls in between begin again.
        retry = copy(self._retry)
        retry.reset()
        moves = 0
        while True:
            try:
                return plan()
            except OtherBroker as moved:
                moves += 1
                self._forget_offsets()
                if moves % len(self._brokers.brokers):
                    logger.warning("%s; another broker plans", moved)
                    continue
                try:
                    retry.wait(Unreachable(str(moved)))
                except Unreachable:
                    raise moved.error from None

    def _forget_offsets(self) -> None:
        """Forget the known ranges of offsets."""

    def _tasks(self, found: Sequence[Stretch]) -> list[Task]:
        tasks = [one for one in super()._tasks(found) if isinstance(one, SharedTask)]
        return list(spread(tasks, len(self._brokers.brokers)))

    def _stretch_tasks(self, stretch: Stretch, parts: int) -> list[Task]:
        found = super()._stretch_tasks(stretch, parts)
        if stretch.since is None:
            since = self._brokers.position(stretch.start, None)
            until = self._brokers.position(stretch.stop, since)
            stretch = replace(stretch, since=since, until=until)
        return list(shared_tasks(self._brokers, found, stretch))

    def _without_expired(self, found: Sequence[Stretch]) -> list[Stretch]:
        # Tasks find losses: messages that have expired at one broker may be at another.
        return [one for one in found if one.start < one.stop]


class SharedBatchReader(SharedPlanning, BatchReader):
    """See ``BatchReader``."""

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises PubSubError."""
        return self._planned(super().partitions)

    def _narrow(self, found: Sequence[Stretch]) -> list[Stretch]:
        # Offsets and partitions are those of the brokers that will be read, and the messages of
        # several brokers are not in the order of their times.
        return list(found)


class SharedStreaming(SharedPlanning, StreamReader):
    """The base of readers of streams."""

    def _forget_offsets(self) -> None:
        StreamReader._forget_offsets(self)

    def initialOffset(self) -> dict[str, Any]:
        """See ``StreamReader``."""
        return self._planned(super().initialOffset)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """See ``StreamReader``."""
        plan = super().latestOffset
        found = self._planned(lambda: plan(start, limit))
        return start if _is_same(start, found) else found

    def prepareForTriggerAvailableNow(self) -> None:
        """See ``StreamReader``."""
        self._planned(super().prepareForTriggerAvailableNow)

    def reportLatestOffset(self) -> dict[str, Any]:
        """See ``StreamReader``."""
        try:
            return super().reportLatestOffset()
        except OtherBroker:
            # The lag would have been measured from offsets of a broker that is no longer available.
            self._forget_offsets()
            return {}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See ``StreamReader``."""
        plan = super().partitions
        return self._planned(lambda: plan(start, end))

    def commit(self, end: dict[str, Any]) -> None:
        """See ``StreamReader``."""
        try:
            super().commit(end)
        except PubSubError as error:
            logger.warning("cannot report the position: %s", error)

    def _ends(self, bounds: Sequence[PartitionBounds]) -> list[int]:
        ends = self._available_now
        if ends is not None and ends[0].epoch != bounds[0].epoch:
            # The offset is of another broker: this one's end is at or behind it.
            self._available_now = {0: PartitionPosition(bounds[0].next, bounds[0].epoch)}
        return super()._ends(bounds)

    def _parse_offsets(self, offsets: dict[str, Any], is_end: bool = False) -> Offsets:
        if len(offsets) > 1:
            raise ConfigurationError(
                "the checkpoint has offsets of single brokers, but those in option url share a "
                "history; use a new checkpoint"
            )
        found = super()._parse_offsets(offsets)
        for number, one in found.items():
            if one.shared is None:
                # Of a query that read one broker, and has more of them from now on.
                found[number] = self._retry.call(partial(converted, self._brokers, one))
        return {number: located(self._brokers, one, is_end) for number, one in found.items()}

    def _encode(self, start: Offsets, end: Offsets) -> dict[str, Any]:
        return to_json(
            {
                number: shared_position(self._brokers, start.get(number), one)
                for number, one in end.items()
            }
        )


class SharedStreamReader(SharedStreaming):
    """See ``StreamReader``."""


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two offsets of Spark stand for the same messages, at whatever broker."""
    return all("shared" in entry for entry in one.values()) and all(
        _places(one[number]) == _places(other[number]) for number in one
    )


def _places(entry: dict[str, Any]) -> object:
    behind = [(each["shared"], each["topics"]) for each in entry.get("behind", ())]
    return _ComparedPosition(entry["shared"]), entry.get("reads"), behind


class _ComparedPosition:
    """A shared position that is equal to one with the same messages before it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ComparedPosition) and same_place(self._text, other._text)

    __hash__ = None  # type: ignore[assignment]
