"""The batch and stream readers on logs, called as Spark calls them."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import (
    ReadMaxBytes,
    ReadMaxRows,
)

from pubsub.errors import ConfigurationError
from pubsub.pipeline.histories.history import DataLoss, HistoryRefused, WrongHistory
from pubsub.pipeline.options.schemas import arrow_schema
from tests.histories import START, damage, history
from tests.unit.fakes import scratch
from tests.unit.raising import raised
from tests.unit.reader_case import ALL, ReaderCase


class BatchTests(ReaderCase):
    def test_everything(self) -> None:
        rows = self.all(rowsPerTask="7")
        assert self.offsets(rows) == list(range(100))
        first = rows[0]
        assert (first["topic"], first["value"]) == ("orders", b"order 0.0")
        assert (first["protocol"], first["key"]) == ("cafe", b"tester")
        assert first["timestamp"].timestamp() == START / 1000000.0
        assert first["partition"] == 0
        assert len({row["message_id"] for row in rows}) == 100

    def test_batches_are_of_sparks_schema(self) -> None:
        for given in (
            {},
            {"includeHeaders": "true"},
            {"columns": "kafka", "includeHeaders": "true"},
            {"stream": "events"},
        ):
            with history(self.path) as file:
                file.put("$SYS/events", [b'{"event": "connect"}'])
            source = self.source(**given)
            reader = source.reader(source.schema())
            for task in reader.partitions():
                for batch in reader.read(task):
                    assert isinstance(batch, pa.RecordBatch)
                    assert batch.schema.equals(arrow_schema(source.schema()))
                    batch.validate(full=True)

    def test_columns_of_kafka(self) -> None:
        names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
        assert self.source(columns="kafka").schema().fieldNames() == names
        both = self.source(columns="Kafka", includeHeaders="true")
        assert both.schema().fieldNames() == [*names, "headers"]
        ours, theirs = self.all(), self.all(columns="kafka")
        assert [row.pop("timestampType") for row in theirs] == [1] * 100
        assert theirs == [{name: row[name] for name in names[:-1]} for row in ours]

    def test_some_columns(self) -> None:
        source = self.source()
        schema = type(source.schema())([source.schema()["value"], source.schema()["offset"]])
        reader = source.reader(schema)
        (batch, *_) = reader.read(reader.partitions()[0])
        assert isinstance(batch, pa.RecordBatch)
        assert batch.schema.names == ["value", "offset"]

    def test_other_columns(self) -> None:
        source = self.source()
        wrong = self.source(stream="events").schema()
        raised(ConfigurationError, source.reader, wrong)

    def test_topics(self) -> None:
        orders = self.all(subscribe="orders")
        assert {row["topic"] for row in orders} == {"orders"}
        assert len(orders) == 50
        assert self.offsets(self.all(subscribePattern="ord.*")) == self.offsets(orders)
        assert self.all(subscribePattern="ord") == []
        assert self.all(subscribe="nobody's") == []

    def test_ranges(self) -> None:
        rows = self.all(startingOffsets='{"0": 15}', endingOffsets='{"0": 34}')
        assert self.offsets(rows) == list(range(15, 34))
        assert self.all(startingOffsets="latest") == []
        raised(ConfigurationError, self.all, endingOffsets='{"0": 101}')

    def test_from_a_time(self) -> None:
        with history(self.path) as file:
            file.put("later", [b"x"] * 1000)
            start = file.next
            file.put("later", [b"y"])
        rows = self.all(startingTimestamp=str(START // 1000 + 1))
        assert self.offsets(rows) == [start]

    def test_an_empty_history(self) -> None:
        self.path = self.path.with_name("empty")
        with history(self.path):
            pass
        assert self.all() == []

    def test_a_snapshot(self) -> None:
        reader = self.batch()
        tasks = reader.partitions()
        with history(self.path) as file:
            file.put("orders", [b"later"])
        assert len(self.rows(reader, tasks)) == 100

    def test_no_history(self) -> None:
        self.path = Path("/nowhere/history")
        assert "/nowhere" in str(raised(HistoryRefused, self.all))

    def test_a_file_that_is_no_history(self) -> None:
        self.path = scratch(self) / "other.db"
        self.path.write_bytes(b"something else entirely, of some length" * 100)
        raised(HistoryRefused, self.all)

    def test_headers(self) -> None:
        with history(self.path) as file:
            file.put("orders", [b"a", b"b"], headers=[{"x": b"1", "y": b"\xff"}, {}])
        rows = self.all(includeHeaders="true", startingOffsets='{"0": 99}')
        assert [row["headers"] for row in rows] == [
            [],
            [{"key": "x", "value": b"1"}, {"key": "y", "value": b"\xff"}],
            [],
        ]


class EventTests(ReaderCase):
    def test_columns(self) -> None:
        event = {"event": "disconnect", "protocol": "cafe", "listener": "tcp:1", "client": "a",
                 "session": "00", "topic": None, "reason": "closed", "messages": 3, "bytes": 30,
                 "frame": "/sr/AA=="}  # fmt: skip
        broken = [b"no json", b"[]", b'{"messages": "3", "frame": "?", "event": 1}']
        with history(self.path) as file:
            file.put("$SYS/events", [json.dumps(event).encode(), *broken])
        first, *others = self.all(stream="events")
        assert first.pop("offset") == 100
        assert first.pop("partition") == 0
        del first["timestamp"]
        assert first == {**event, "frame": b"\xfe\xca\xff\x00"}
        for other in others:
            assert (other["event"], other["messages"], other["frame"]) == (None,) * 3

    def test_events_are_not_messages(self) -> None:
        with history(self.path) as file:
            file.put("$SYS/events", [b"{}"])
        assert len(self.all()) == 100
        assert len(self.all(subscribePattern=".*")) == 100
        assert len(self.all(subscribe="$SYS/events")) == 1


class StreamTests(ReaderCase):
    def test_the_default_start_is_the_end(self) -> None:
        assert self.stream().initialOffset()["0"]["next"] == 100
        assert self.stream(startingOffsets="earliest").initialOffset()["0"]["next"] == 0

    def test_batches_continue_at_the_last_end(self) -> None:
        reader = self.stream(startingOffsets="earliest")
        (first,), at = self.run_batches(reader, reader.initialOffset())
        assert self.offsets(first) == list(range(100))
        with history(self.path) as file:
            file.put("orders", [b"x"] * 5)
        # Another run of the query, in another epoch of the history.
        (second,), _ = self.run_batches(self.stream(startingOffsets="earliest"), at)
        assert self.offsets(second) == list(range(100, 105))

    def test_limits_on_rows(self) -> None:
        reader = self.stream(startingOffsets="earliest", maxOffsetsPerTrigger="30")
        assert reader.getDefaultReadLimit() == ReadMaxRows(30)
        batches, _ = self.run_batches(reader, reader.initialOffset(), ReadMaxRows(30))
        assert [len(batch) for batch in batches] == [30, 30, 30, 10]

    def test_limits_on_rows_of_a_topic(self) -> None:
        reader = self.stream(startingOffsets="earliest", subscribe="orders")
        batches, _ = self.run_batches(reader, reader.initialOffset(), ReadMaxRows(12))
        assert sum(map(len, batches)) == 50
        assert all(len(batch) <= 12 for batch in batches)
        assert len(batches) < 10, batches

    def test_limits_on_bytes(self) -> None:
        reader = self.stream(startingOffsets="earliest", maxBytesPerTrigger="200")
        assert reader.getDefaultReadLimit() == ReadMaxBytes(200)
        batches, _ = self.run_batches(reader, reader.initialOffset(), ReadMaxBytes(200))
        assert sum(map(len, batches)) == 100
        for batch in batches:
            assert sum(len(row["value"]) for row in batch) <= 200
        assert len(batches) < 12

    def test_both_limits(self) -> None:
        reader = self.stream(
            startingOffsets="earliest", maxBytesPerTrigger="200", maxOffsetsPerTrigger="10"
        )
        limit = reader.getDefaultReadLimit()
        batches, _ = self.run_batches(reader, reader.initialOffset(), limit)
        assert [len(batch) for batch in batches] == [10] * 10

    def test_all_available_has_no_limits(self) -> None:
        reader = self.stream(startingOffsets="earliest", maxBytesPerTrigger="1")
        batches, _ = self.run_batches(reader, reader.initialOffset(), ALL)
        assert [len(batch) for batch in batches] == [100]

    def test_a_message_over_the_limit(self) -> None:
        reader = self.stream(startingOffsets=json.dumps({"0": 80}))
        batches, _ = self.run_batches(reader, reader.initialOffset(), ReadMaxBytes(1))
        assert [len(batch) for batch in batches] == [1] * 20

    def test_available_now_ends(self) -> None:
        reader = self.stream(startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        with history(self.path) as file:
            file.put("orders", [b"later"])
        batches, at = self.run_batches(reader, reader.initialOffset(), ReadMaxRows(60))
        assert [len(batch) for batch in batches] == [60, 40]
        assert reader.reportLatestOffset()["0"]["next"] == 101
        batches, _ = self.run_batches(self.stream(), at)
        assert [len(batch) for batch in batches] == [1]

    def test_available_now_in_a_history_shorter_than_the_checkpoint(self) -> None:
        reader = self.stream()
        reader.prepareForTriggerAvailableNow()
        beyond = {"0": {"next": 101, "epoch": "1-0"}}
        raised(WrongHistory, reader.latestOffset, beyond, ALL)

    def test_nothing_to_read(self) -> None:
        reader = self.stream()
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadMaxRows(5)) == start
        assert list(reader.partitions(start, start)) == []

    def test_a_checkpoint_of_more_brokers(self) -> None:
        two = {**self.stream().initialOffset(), "1": {"next": 0, "epoch": "x"}}
        raised(ConfigurationError, self.stream().latestOffset, two, ALL)


class LossTests(ReaderCase):
    def expire(self, before: int) -> None:
        with history(self.path) as file:
            file.expire(before)

    def at(self, offset: int) -> dict[str, Any]:
        """Return an earlier valid position."""
        epoch = self.stream().initialOffset()["0"]["epoch"]
        return {"0": {"next": offset, "epoch": epoch}}

    def test_retention_has_overtaken_the_checkpoint(self) -> None:
        start = self.at(5)
        self.expire(40)
        reader = self.stream()
        end = reader.latestOffset(start, ALL)
        error = raised(DataLoss, reader.partitions, start, end)
        assert "partition 0: offsets 5 to 39 have expired" in str(error)

    def test_expired_messages_are_skipped(self) -> None:
        start = self.at(5)
        self.expire(40)
        reader = self.stream(failOnDataLoss="false")
        end = reader.latestOffset(start, ReadMaxRows(10))
        with self.assertLogs("pubsub.pipeline", "WARNING") as logs:
            tasks = reader.partitions(start, end)
        assert "offsets 5 to 39 have expired: 35 skipped" in logs.output[0]
        assert self.offsets(self.rows(reader, tasks)) == list(range(40, 50))

    def test_all_has_expired(self) -> None:
        start = self.at(5)
        self.expire(100)
        reader = self.stream(failOnDataLoss="false")
        end = reader.latestOffset(start, ALL)
        assert end["0"]["next"] == 100
        assert list(reader.partitions(start, end)) == []

    def test_retention_overtakes_a_task(self) -> None:
        for fail in ("true", "false"):
            reader = self.batch(failOnDataLoss=fail, rowsPerTask="50")
            tasks = reader.partitions()
            self.expire(20 if fail == "true" else 60)
            if fail == "true":
                error = raised(DataLoss, self.rows, reader, tasks)
                assert "offsets 0 to 19" in str(error)
            else:
                with self.assertLogs("pubsub.pipeline", "WARNING") as logs:
                    assert self.offsets(self.rows(reader, tasks)) == list(range(60, 100))
                assert "40 offsets lost in total" in logs.output[1]

    def test_damage(self) -> None:
        damage(self.path, 30)
        error = raised(DataLoss, self.all)
        assert "partition 0: offsets 30 to 39 are damaged" in str(error)
        with self.assertLogs("pubsub.pipeline", "WARNING") as logs:
            rows = self.all(failOnDataLoss="false")
        assert self.offsets(rows) == [*range(30), *range(40, 100)]
        assert "10 skipped" in logs.output[0]

    def test_damage_is_reported_once(self) -> None:
        """Tasks that begin and end in a damaged range each report their share of it."""
        damage(self.path, 30)
        with self.assertLogs("pubsub.pipeline", "WARNING") as logs:
            rows = self.all(failOnDataLoss="false", rowsPerTask="4")
        assert len(rows) == 90
        lost = [line for line in logs.output if "skipped" in line]
        assert sum(int(line.split(": ")[-1].split()[0]) for line in lost) == 10

    def test_another_history_of_the_same_length(self) -> None:
        reader = self.stream()
        start = reader.initialOffset()
        self.path = self.path.with_name("other")
        with history(self.path) as file:
            file.put("orders", [b"x"] * 200)
        other = self.stream()
        end = other.latestOffset(start, ALL)
        raised(WrongHistory, other.partitions, start, end)

    def test_a_restored_older_state(self) -> None:
        older = self.path.with_name("older")
        copytree(self.path, older)
        with history(self.path) as file:
            file.put("orders", [b"x"] * 20)
        start = self.stream().initialOffset()
        self.path = older
        raised(WrongHistory, self.stream().latestOffset, start, ALL)
        with history(self.path) as file:
            file.put("orders", [b"y"] * 30)
        reader = self.stream()
        end = reader.latestOffset(start, ALL)
        raised(WrongHistory, reader.partitions, start, end)
