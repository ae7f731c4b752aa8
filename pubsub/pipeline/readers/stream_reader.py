"""The reader of streaming queries: their offsets, batch by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.histories.broker_list import BrokerList
from pubsub.pipeline.histories.history import PartitionBounds
from pubsub.pipeline.histories.http_history import HttpHistory
from pubsub.pipeline.histories.open_histories import open_histories
from pubsub.pipeline.histories.retry import Retry, logger
from pubsub.pipeline.histories.topic_amounts import Amount, amount_of
from pubsub.pipeline.options.connector_options import SourceOptions
from pubsub.pipeline.options.offset_options import LATEST
from pubsub.pipeline.positions.lag import LagMeter
from pubsub.pipeline.positions.offsets import Offsets, PartitionPosition, from_json, to_json
from pubsub.pipeline.positions.quiet import QuietRanges
from pubsub.pipeline.positions.topic_positions import (
    Stretch,
    advanced,
    batch_end,
    first_position,
    stretches,
    with_subscription,
)
from pubsub.pipeline.positions.topic_starts import TopicStarts
from pubsub.pipeline.readers.admission import Delay, WaitingMessages, admit
from pubsub.pipeline.readers.reader_lease import ReaderLease
from pubsub.pipeline.readers.source_reader import SourceReader, check_histories


class StreamReader(SourceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads existing and new messages, a batch at a time."""

    _lease: ReaderLease | None = None

    def __init__(
        self, options: SourceOptions, schema: StructType, retry: Retry | None = None
    ) -> None:
        super().__init__(options, schema, retry)
        self._forget_offsets()
        self._delay = Delay(options.min_offsets, options.max_delay)
        self._available_now: Offsets | None = None
        self._latest: Offsets | None = None

    def _forget_offsets(self) -> None:
        """Forget the known ranges of offsets."""
        self._quiet = QuietRanges(self._options.reader_name or default_reader_name(self._options))
        self._lag = LagMeter()

    def _hold_name(self) -> None:
        """Hold the reader name that the user chose, in the process that plans the query."""
        name = self._options.reader_name
        if self._lease is None and name is not None and self._options.exclusive_reader:
            # Connections of their own, as the lease is renewed in a thread.
            histories = open_histories(self._options)
            leased = [each for each in histories if isinstance(each, HttpHistory | BrokerList)]
            self._lease = ReaderLease(name, leased)
            self._lease.begin()
            self._lease.end_at_termination()
        elif self._lease is not None:
            self._lease.check()

    def stop(self) -> None:
        """Release the reader name."""
        if self._lease is not None:
            self._lease.end()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_lease": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets where a query without a checkpoint starts."""
        self._hold_name()
        first = {
            starts.number: self._retry.call(partial(self._first_position, starts))
            for starts in self._starts()
        }
        first = {number: replace(one, initial=True) for number, one in first.items()}
        return self._encode({}, first)

    def _starts(self) -> list[TopicStarts]:
        return self._places(self._options.starting, self._options.starting_timestamp, LATEST)

    def _first_position(self, starts: TopicStarts) -> PartitionPosition:
        history = self._histories()[starts.number]
        return first_position(history, starts, self._options.subscription(starts.number))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit in the options. If several limits are given, all apply."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` if there is nothing to read yet."""
        self._hold_name()
        bounds = self._bounds()
        given = self._parse_offsets(start)
        check_histories(given, bounds)
        ends = self._ends(bounds)
        positions = self._with_subscription(given, ends)
        self._latest = positions
        if positions != given:
            # The batch is empty: where new topics begin is stored before they are read.
            return self._ended(given, positions)
        positions = {
            number: replace(one, reads=one.reads or self._options.subscription(number))
            for number, one in positions.items()
        }
        found = self._waiting(positions, bounds, ends)
        rows = sum(one.amount.rows for _, one in found)
        if not rows:
            moved = self._after_quiet(positions, bounds, ends)
        elif self._holds(rows, limit):
            moved = positions
        else:
            moved = self._batch_end(positions, bounds, found, limit)
        self._latest = moved
        return start if moved == positions else self._ended(given, moved)

    def _ended(self, start: Offsets, end: Offsets) -> dict[str, Any]:
        return self._encode(
            start, {number: batch_end(start[number], one) for number, one in end.items()}
        )

    def _encode(self, start: Offsets, end: Offsets) -> dict[str, Any]:
        """Return ``end`` as Spark stores it; it was reached from ``start``."""
        return to_json(end)

    def _ends(self, bounds: Sequence[PartitionBounds]) -> list[int]:
        if self._available_now is None:
            return [each.next for each in bounds]
        return [
            min(each.next, self._available_now[number].next) for number, each in enumerate(bounds)
        ]

    def _with_subscription(self, given: Offsets, ends: Sequence[int]) -> Offsets:
        """Return the positions with the topics of the options, where these were changed."""
        changed = dict(given)
        starts: list[TopicStarts] = []
        for number, position in given.items():
            reads = self._options.subscription(number)
            if position.reads in (None, reads):
                continue
            starts = starts or self._starts()
            end = max(ends[number], position.next)
            there = starts[number]
            bounds = replace(
                there.bounds, next=end, offset_at_time=min(there.bounds.offset_at_time, end)
            )
            there = replace(there, bounds=bounds)
            history = self._histories()[number]
            make = partial(with_subscription, history, position, reads, there)
            changed[number] = self._retry.call(make)
        return changed

    def _waiting(
        self, positions: Offsets, bounds: Sequence[PartitionBounds], ends: Sequence[int]
    ) -> list[tuple[Stretch, WaitingMessages]]:
        """Return the ranges that wait to be read, and their sizes."""
        found = []
        for number, position in positions.items():
            end = replace(position, next=max(ends[number], position.next), behind=())
            for one in self._stretches(number, position, end):
                examined = self._quiet.until(number, one.start)
                start = min(max(one.start, examined, bounds[number].first), one.stop)
                measure = partial(self._amount, one)
                found.append(
                    (one, WaitingMessages(start, one.stop, measure(start, one.stop), measure))
                )
        return found

    def _stretches(
        self, number: int, start: PartitionPosition, end: PartitionPosition
    ) -> list[Stretch]:
        return stretches(number, start, end, self._options.subscription(number))

    def _amount(self, stretch: Stretch, start: int, stop: int) -> Amount:
        history = self._histories()[stretch.partition]
        return self._retry.call(partial(amount_of, stretch.reads, history, start, stop))

    def _holds(self, rows: int, limit: ReadLimit) -> bool:
        if self._available_now is not None or isinstance(limit, ReadAllAvailable):
            return False
        return self._delay.holds(rows)

    def _batch_end(
        self,
        positions: Offsets,
        bounds: Sequence[PartitionBounds],
        found: Sequence[tuple[Stretch, WaitingMessages]],
        limit: ReadLimit,
    ) -> Offsets:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        nbytes = None if isinstance(limit, ReadAllAvailable) else self._options.max_bytes
        if isinstance(limit, ReadMaxBytes):
            nbytes = limit.max_bytes
        stops: dict[int, dict[int, int]] = {number: {} for number in positions}
        for (one, _), stop in zip(
            found, admit([each for _, each in found], rows, nbytes), strict=True
        ):
            stops[one.partition][one.start] = stop
        return {
            number: advanced(
                position,
                bounds[number].epoch,
                stops[number],
                stops[number].get(position.next, position.next),
            )
            for number, position in positions.items()
        }

    def _after_quiet(
        self, positions: Offsets, bounds: Sequence[PartitionBounds], ends: Sequence[int]
    ) -> Offsets:
        """Note that nothing has to be read; return the positions, moved if they would expire."""
        moved = dict(positions)
        for number, position in positions.items():
            end = ends[number]
            if end <= position.next and not position.behind:
                continue
            if position.behind or not self._may_stay(number, position, end):
                moved[number] = advanced(
                    position, bounds[number].epoch, {}, max(end, position.next)
                )
        return moved

    def _may_stay(self, number: int, position: PartitionPosition, end: int) -> bool:
        history = self._histories()[number]
        # Of now: messages that have expired since the range was measured were not seen.
        bounds = self._retry.call(history.bounds)
        return self._quiet.note(history, number, position, end, bounds)

    def _quiet_until(self, stretch: Stretch, first: int) -> int:
        history = self._histories()[stretch.partition]
        return self._quiet.known_until(history, stretch, first)

    def prepareForTriggerAvailableNow(self) -> None:
        """Leave messages that arrive from now on to the next run."""
        self._hold_name()
        self._available_now = {
            number: PartitionPosition(bounds.next, bounds.epoch)
            for number, bounds in enumerate(self._bounds())
        }

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the ends of the histories and the lag behind them, for the progress."""
        report = {}
        for number, bounds in enumerate(self._bounds()):
            entry: dict[str, Any] = {"next": bounds.next, "epoch": bounds.epoch}
            if self._latest is not None:
                entry["lag"] = self._lag_of(number, self._latest[number], bounds)
            report[str(number)] = entry
        return report

    def _lag_of(
        self, number: int, position: PartitionPosition, bounds: PartitionBounds
    ) -> dict[str, Any]:
        end = replace(position, next=max(bounds.next, position.next), behind=())
        found = []
        for one in self._stretches(number, position, end):
            start = max(one.start, self._quiet.until(number, one.start), bounds.first)
            if start < one.stop:
                found.append(replace(one, start=start))
        history = self._histories()[number]
        return self._retry.call(partial(self._lag.measure, history, found))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Raises DataLoss if some of its messages no longer exist."""
        self._hold_name()
        last = self._parse_offsets(end, is_end=True)
        # Another start than that of the first run of the batch would skip messages, or repeat some.
        first = {
            number: last[number].since or position
            for number, position in self._parse_offsets(start).items()
        }
        check_histories(first, self._bounds())
        found: list[Stretch] = []
        for number, position in first.items():
            if position.epoch != last[number].epoch:
                history = self._histories()[number]
                self._retry.call(partial(history.check, position.next, position.epoch))
            found += self._stretches(number, position, last[number])
        return self._tasks(found)

    def commit(self, end: dict[str, Any]) -> None:
        """Store the position of the query at the brokers. A failure is only logged."""
        for number, position in self._parse_offsets(end).items():
            try:
                self._quiet.report(self._histories()[number], number, position)
            except PubSubError as error:
                logger.warning("partition %d: cannot report the position: %s", number, error)

    def _parse_offsets(self, offsets: dict[str, Any], is_end: bool = False) -> Offsets:
        found = from_json(offsets, self._options.partitions)
        if not self._options.shared and any(one.shared is not None for one in found.values()):
            raise ConfigurationError(
                "the checkpoint is of brokers that share a history; name at least two of them in "
                "option url, of which one may be unavailable"
            )
        return found


def default_reader_name(options: SourceOptions) -> str:
    """Return a reader name for a query without one, the same for the same subscription."""
    subscription: list[object] = [options.stream, sorted(options.topics or ()), options.pattern]
    if options.assigned is not None:
        subscription.append([(n, sorted(names)) for n, names in sorted(options.assigned.items())])
    return f"spark-{hashlib.sha256(repr(subscription).encode()).hexdigest()[:12]}"
