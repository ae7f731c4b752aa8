"""Admission to a batch: options in Kafka's forms, limits, delays, divided ranges, lag."""

from __future__ import annotations

import json

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.histories.topic_amounts import Amount
from pubsub.pipeline.positions.lag import LagMeter
from pubsub.pipeline.readers.admission import Delay, WaitingMessages, admit
from pubsub.pipeline.tasks.planning import Task
from tests.histories import START, history
from tests.unit.raising import raised
from tests.unit.reader_case import ReaderCase


class Offsets(ReaderCase):
    """Batch queries. 100 messages: ten of orders and ten of cafe/7 in turn."""

    def test_offsets_of_topics(self) -> None:
        rows = self.all(
            subscribe="orders,cafe/7",
            startingOffsets='{"orders": {"0": 45}, "cafe/7": {"0": -2}}',
            endingOffsets='{"orders": {"0": -1}, "cafe/7": {"0": 12}}',
        )
        assert sorted(self.offsets(rows)) == [10, 11, *range(45, 50), *range(60, 70),
                                              *range(80, 90)]  # fmt: skip

    def test_topics_that_are_not_named(self) -> None:
        rows = self.all(startingOffsets='{"orders": {"0": 85}}', endingOffsets='{"0": 95}')
        assert sorted(self.offsets(rows)) == [
            offset for offset in range(95) if offset >= 85 or offset // 10 % 2
        ]

    def test_until_a_time(self) -> None:
        with history(self.path) as file:
            file.put("later", [b"x"] * 1000)
            end = file.next
            file.put("later", [b"y"])
        rows = self.all(endingTimestamp=str(START // 1000 + 1))
        assert self.offsets(rows) == list(range(end))
        # A time after the last message.
        assert len(self.all(endingTimestamp="2100-01-01T00:00:00Z")) == end + 1

    def test_assigned_topics(self) -> None:
        rows = self.all(assign='{"orders": [0]}', endingOffsets='{"orders": {"0": 15}}')
        assert self.offsets(rows) == list(range(10))
        reader = self.stream(assign='{"orders": [0]}', startingOffsets="earliest")
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert end["0"]["reads"] == {"topics": ["orders"]}

    def test_mistakes(self) -> None:
        for wrong in (
            {"assign": '{"orders": [1]}'},
            {"assign": "orders"},
            {"assign": "{}"},
            {"assign": '{"orders": [0]}', "subscribe": "orders"},
            {"subscribe": "orders", "startingOffsets": '{"other": {"0": 5}}'},
            {"subscribe": "orders", "endingOffsets": '{"orders": {"1": 5}}'},
            {"subscribe": "orders", "startingOffsets": '{"orders": {"-1": 5}}'},
            {"endingOffsets": "latest", "endingTimestamp": "0"},
            {"endingTimestamp": "yesterday"},
            {"minPartitions": "0"},
        ):
            raised(ConfigurationError, self.batch, **wrong)
        raised(ConfigurationError, self.stream, endingTimestamp="0")
        raised(ConfigurationError, self.stream, maxTriggerDelay="5s")
        raised(ConfigurationError, self.stream, maxTriggerDelay="soon", minOffsetsPerTrigger="5")


class MinPartitionsTests(ReaderCase):
    def tasks(self, **given: str) -> list[Task]:
        found = self.batch(**given).partitions()
        return [task for task in found if isinstance(task, Task)]

    def test_several_tasks_of_one_broker(self) -> None:
        tasks = self.tasks(minPartitions="4")
        assert len(tasks) == 4
        assert len(self.all(minPartitions="4")) == 100
        assert len(self.all(minPartitions="1000")) == 100

    def test_they_are_divided_by_bytes(self) -> None:
        with history(self.path) as file:
            file.put("big", [b"x" * 10_000] * 10)
        tasks = self.tasks(minPartitions="4")
        # Ten of 110 messages have nearly all bytes.
        assert [task.start for task in tasks[1:]] != [27, 55, 82]
        assert all(task.start >= 95 for task in tasks[1:]), tasks

    def test_offsets_per_topic_are_divided_as_well(self) -> None:
        tasks = self.tasks(startingOffsets='{"orders": {"0": 50}}', minPartitions="5")
        assert len(tasks) >= 5


class GapTests(SynchronousTestCase):
    """Behind some stores offsets increase with gaps."""

    def waiting(self, offsets: set[int], stop: int) -> WaitingMessages:
        def measure(low: int, high: int) -> Amount:
            rows = len([offset for offset in offsets if low <= offset < high])
            return Amount(rows, 10 * rows)

        return WaitingMessages(0, stop, measure(0, stop), measure)

    def test_a_limit_counts_messages(self) -> None:
        one = self.waiting(set(range(500_000, 500_100)), 1_000_000)
        (stop,) = admit([one], 40, None)
        assert 500_001 <= stop <= 500_040
        (stop,) = admit([one], None, 400)
        assert 500_001 <= stop <= 500_040
        assert admit([one], 100, None) == [1_000_000]

    def test_empty_ranges_are_passed(self) -> None:
        one, other = self.waiting(set(), 1000), self.waiting(set(range(1000)), 1000)
        assert admit([one, other], 10, None) == [1000, 10]


class MinimumTests(ReaderCase):
    def test_a_batch_waits_for_enough_messages(self) -> None:
        now = [0.0]
        reader = self.stream(
            startingOffsets="earliest", minOffsetsPerTrigger="30", maxTriggerDelay="10s"
        )
        reader._delay = Delay(30, 10.0, lambda: now[0])
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMinRows(30)
        at = json.loads(json.dumps(reader.latestOffset(reader.initialOffset(), limit)))
        assert at["0"]["next"] == 100
        with history(self.path) as file:
            file.put("orders", [b"x"] * 29)
        assert reader.latestOffset(at, limit) == at
        assert reader.reportLatestOffset()["0"]["lag"]["messages"] == 29
        now[0] = 9.9
        assert reader.latestOffset(at, limit) == at
        now[0] = 10.0
        end = reader.latestOffset(at, limit)
        assert end["0"]["next"] == 129
        # Triggers that take everything once do not wait.
        with history(self.path) as file:
            file.put("orders", [b"x"])
        assert reader.latestOffset(end, ReadAllAvailable())["0"]["next"] == 130
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(end, limit)["0"]["next"] == 130

    def test_enough_messages(self) -> None:
        reader = self.stream(startingOffsets="earliest", minOffsetsPerTrigger="30")
        at = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        with history(self.path) as file:
            file.put("orders", [b"x"] * 30)
        assert reader.latestOffset(at, reader.getDefaultReadLimit())["0"]["next"] == 130


class LagTests(ReaderCase):
    def test_of_the_topics(self) -> None:
        reader = self.stream(startingOffsets="earliest", subscribe="orders")
        reader._lag = LagMeter(lambda: START / 1e6 + 60)
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(20))
        entry = reader.reportLatestOffset()["0"]
        assert entry["next"] == 100
        assert entry["lag"] == {
            "messages": 30,
            "bytes": 30 * len(b"order 0.0tester"),
            "seconds": 60.0,
        }
