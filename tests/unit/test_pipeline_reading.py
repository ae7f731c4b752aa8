"""Tasks with an unreliable broker, and the HTTP client with a scripted server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from pubsub.pipeline.histories.history import (
    BatchOrGap,
    DamagedRange,
    DataLoss,
    ExpiredBefore,
    HistoryRefused,
    Unreachable,
    WrongHistory,
)
from pubsub.pipeline.histories.http_history import ErrorReply, HttpHistory
from pubsub.pipeline.options.connector_options import Credentials, source_options
from pubsub.pipeline.options.schemas import MESSAGES_SCHEMA, arrow_schema
from pubsub.pipeline.publishing.staged_writer import PartStager, StagedBatch
from pubsub.pipeline.tasks.planning import Task
from pubsub.pipeline.tasks.task_reader import read_task
from pubsub.store.reading.arrow import SCHEMA
from tests.unit.fake_history import FakeHistory
from tests.unit.fakes import scratch
from tests.unit.http_case import TOKEN, HttpCase, Time
from tests.unit.raising import raised


def batch(*offsets: int) -> pa.RecordBatch:
    """Return messages as a broker sends them."""
    rows = [
        {"topic": "t", "partition": 0, "offset": offset, "timestamp": offset, "protocol": "cafe",
         "key": b"", "value": b"%d" % offset, "message_id": str(offset)}
        for offset in offsets
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


class BrokenHistory(FakeHistory):
    """A history that yields its items from an offset on, and fails after some of them."""

    def __init__(self, items: list[BatchOrGap], breaks: list[int]) -> None:
        super().__init__()
        self._items = items
        self._breaks = breaks
        self.starts: list[int] = []

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[BatchOrGap]:
        self.starts.append(start)
        left = self._breaks.pop(0) if self._breaks else len(self._items)
        for item in self._items:
            if isinstance(item, pa.RecordBatch):
                item = item.filter(pa.compute.greater_equal(item["offset"], start))
                if not item.num_rows:
                    continue
            elif isinstance(item, DamagedRange) and item.stop <= start:
                continue
            if not left:
                raise Unreachable("gone")
            left -= 1
            yield item
        if not left:
            raise Unreachable("gone")


def read(
    history: FakeHistory, stop: int, time: Time, partition: int = 0, **given: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a task from 0 to ``stop``."""
    options = source_options({"path": "/x", **given}, False)
    task = Task(partition, 0, stop, "1-a", None)
    schema = arrow_schema(MESSAGES_SCHEMA)
    for found in read_task(history, task, options, schema, time.retry()):
        yield from found.to_pylist()


class ResumeTests(SynchronousTestCase):
    def test_reading_resumes_after_the_last_batch(self) -> None:
        history = BrokenHistory([batch(0, 1), batch(2, 5), batch(6)], [1, 1, 0])
        with self.assertLogs("pubsub.pipeline", "WARNING"):
            rows = list(read(history, 10, Time()))
        assert [row["offset"] for row in rows] == [0, 1, 2, 5, 6]
        assert history.starts == [0, 2, 6, 6]

    def test_it_gives_up(self) -> None:
        time = Time()
        history = BrokenHistory([batch(0)], [1] + [0] * 1000)
        rows = read(history, 10, time)
        with self.assertLogs("pubsub.pipeline", "WARNING") as logs:
            assert next(rows)["offset"] == 0
            raised(Unreachable, next, rows)
        assert len(logs.output) == 1
        assert 55 < time.now <= 60, time.now
        assert max(time.slept) <= 2

    def test_progress_resets_the_timeout(self) -> None:
        time = Time()
        items: list[BatchOrGap] = [batch(number) for number in range(10)]
        history = BrokenHistory(items, [1, *[0] * 20] * 10)
        with self.assertLogs("pubsub.pipeline", "WARNING"):
            assert len(list(read(history, 10, time))) == 10
        assert time.now > 120

    def test_rows_have_the_partition_of_the_query(self) -> None:
        rows = read(BrokenHistory([batch(0, 1)], []), 2, Time(), partition=3)
        assert [row["partition"] for row in rows] == [3, 3]

    def test_loss_is_reported_with_the_partition(self) -> None:
        history = BrokenHistory([ExpiredBefore(3), batch(3), DamagedRange(4, 8), batch(8)], [])
        error = raised(DataLoss, list, read(history, 9, Time(), partition=2))
        assert "partition 2: offsets 0 to 2 have expired" in str(error)
        with self.assertLogs("pubsub.pipeline", "WARNING") as logs:
            rows = list(read(history, 9, Time(), failondataloss="false"))
        assert [row["offset"] for row in rows] == [3, 8]
        assert "7 offsets lost in total" in logs.output[-1]

    def test_damage_is_not_counted_again_after_a_break(self) -> None:
        history = BrokenHistory([DamagedRange(0, 4), batch(4), batch(5)], [1])
        with self.assertLogs("pubsub.pipeline", "WARNING") as logs:
            rows = list(read(history, 6, Time(), failondataloss="false"))
        assert [row["offset"] for row in rows] == [4, 5]
        assert "4 offsets lost in total" in logs.output[-1]
        assert history.starts == [0, 4]


def stream(*items: pa.RecordBatch | DamagedRange) -> bytes:
    """Return an Arrow stream like one of the broker."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for item in items:
            if isinstance(item, DamagedRange):
                metadata = {"damaged": json.dumps([item.start, item.stop])}
                writer.write_batch(batch(), custom_metadata=metadata)
            else:
                writer.write_batch(item)
    body: bytes = sink.getvalue().to_pybytes()
    return body


class HistoryTests(HttpCase):
    def items(self, stop: int = 10, topics: frozenset[str] | None = None) -> list[Any]:
        found = self.history.read(0, stop, topics, False, "1-a")
        return [p["offset"].to_pylist() if isinstance(p, pa.RecordBatch) else p for p in found]

    def test_a_stream(self) -> None:
        self.server.add_reply(200, stream(batch(0, 1), DamagedRange(2, 5), batch(5)))
        assert self.items(topics=frozenset({"b", "a"})) == [[0, 1], DamagedRange(2, 5), [5]]
        ((method, path, body),) = self.server.requests
        assert (method, path) == ("POST", "/v1/history")
        asked = json.loads(body)
        assert (asked["start"], asked["stop"], asked["epoch"]) == (0, 10, "1-a")
        assert asked["topics"] == ["a", "b"]
        assert self.server.tokens == [f"Bearer {TOKEN}"]

    def test_a_truncated_stream_is_an_error(self) -> None:
        whole = stream(batch(0), batch(1))
        for length in range(0, len(whole) - 1, 7):
            self.server.add_reply(200, whole[:length], missing=len(whole) - length)
            raised(Unreachable, self.items)

    def test_a_stream_without_its_end_marker_is_an_error(self) -> None:
        """Even if the HTTP transfer is complete."""
        whole = stream(batch(0))
        self.server.add_reply(200, whole[:-8])
        raised(Unreachable, self.items)

    def test_expired_messages(self) -> None:
        self.server.add_reply(410, {"error": "expired", "first": 4})
        self.server.add_reply(200, stream(batch(4)))
        assert self.items() == [ExpiredBefore(4), [4]]
        self.server.add_reply(410, {"error": "expired", "first": 40})
        assert self.items() == [ExpiredBefore(40)]

    def test_another_history(self) -> None:
        for status, code in ((409, "epoch"), (416, "beyond-end")):
            self.server.add_reply(status, {"error": code})
            raised(WrongHistory, self.items)
        self.server.add_reply(409, {"error": "epoch"})
        raised(WrongHistory, self.history.check, 5, "1-a")
        self.server.add_reply(410, {"error": "expired", "first": 9})
        self.history.check(5, "1-a")

    def test_temporary_errors(self) -> None:
        for status in (502, 503, 504):
            self.server.add_reply(status, {"error": "busy", "message": "soon"})
            raised(Unreachable, self.history.bounds)

    def test_refusals(self) -> None:
        self.server.add_reply(403, {"error": "forbidden", "message": "topic 'a' may not be read"})
        error = raised(HistoryRefused, self.items)
        assert "forbidden: topic 'a' may not be read" in str(error)
        for said in (b"<html>", [1], {"message": "x"}, None):
            self.server.add_reply(404, said)
            raised(ErrorReply, self.history.bounds)

    def test_bounds_topics_and_reports(self) -> None:
        self.server.add_reply(200, {"first": 1, "next": 5, "epoch": "1-a", "offset": 3})
        assert self.history.bounds(77).offset_at_time == 3
        self.server.add_reply(200, {"topics": [{"name": "a", "messages": 2, "bytes": 9}]})
        assert self.history.topics(1, 5)[0].nbytes == 9
        self.server.add_reply(204)
        self.history.report_position("a b/c", 5, "1-a")
        assert [path for _, path, _ in self.server.requests] == [
            "/v1/bounds?timestamp=77",
            "/v1/topics?start=1&stop=5",
            "/v1/readers/a%20b%2Fc",
        ]


class TokenTests(HttpCase):
    def test_an_unreachable_broker(self) -> None:
        history = HttpHistory("http://127.0.0.1:1", Credentials(TOKEN))
        error = raised(Unreachable, history.bounds)
        assert "secret" not in str(error)

    def test_a_token_that_is_not_a_header_value(self) -> None:
        for token in ("secret\nX-Other: 1", "secret\u2603"):
            history = HttpHistory(self.server.url, Credentials(token))
            error = raised(HistoryRefused, history.bounds)
            assert str(error).startswith("source: the token contains a character that tokens")
            assert "secret" not in str(error) + repr(error.__context__)
        assert self.server.requests == []

    def test_a_missing_token_file(self) -> None:
        history = HttpHistory(self.server.url, Credentials(file="/nowhere/token"))
        error = raised(HistoryRefused, history.bounds)
        assert str(error) == (
            "source: the token cannot be read: /nowhere/token: No such file or directory; "
            "write a valid token to /nowhere/token"
        )

    def test_a_token_file_that_is_not_text(self) -> None:
        path = scratch(self) / "token"
        path.write_bytes(b"secret\xff")
        history = HttpHistory(self.server.url, Credentials(file=str(path)))
        error = raised(HistoryRefused, history.bounds)
        assert str(error).startswith(f"source: the token cannot be read: {path}: not text; write ")

    def test_a_token_file_that_is_no_regular_file(self) -> None:
        directory = scratch(self)
        os.mkfifo(directory / "fifo")
        for path in (directory, directory / "fifo", "/dev/zero"):
            history = HttpHistory(self.server.url, Credentials(file=str(path)))
            error = raised(HistoryRefused, history.bounds)
            cause = f"source: the token cannot be read: {path}: not a regular file; "
            assert str(error).startswith(cause)
        assert self.server.requests == []

    def test_only_the_first_line_of_a_token_file_is_read(self) -> None:
        path = scratch(self) / "token"
        history = HttpHistory(self.server.url, Credentials(file=str(path)))
        path.write_bytes(b"a.b.c \n" + b"\xff" * 2**20)
        self.server.add_reply(200, {"first": 0, "next": 0, "epoch": ""})
        history.bounds()
        assert self.server.tokens == ["Bearer a.b.c"]
        # A line is read up to 64 KiB: more of it than any header has.
        path.write_bytes(b"a" * 2**20)
        assert len(Credentials(file=str(path)).read() or "") == 2**16

    def test_a_token_that_is_renewed(self) -> None:
        path = scratch(self) / "token"
        history = HttpHistory(self.server.url, Credentials(file=str(path)))
        for token in ("a", "b"):
            path.write_text(token)
            self.server.add_reply(200, {"first": 0, "next": 0, "epoch": ""})
            history.bounds()
        assert self.server.tokens == ["Bearer a", "Bearer b"]

    def test_redirects_are_not_followed(self) -> None:
        """A redirect would pass the token on."""
        self.server.add_reply(307, {"error": "elsewhere"})
        raised(ErrorReply, self.history.bounds)
        assert len(self.server.requests) == 1


class StageTests(HttpCase):
    def setUp(self) -> None:
        super().setUp()
        self.staged_batch = StagedBatch(self.server.url, Credentials(TOKEN), "query", 7)

    def table(self, rows: int, size: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"topic": ["t"] * rows, "value": [bytes(size)] * rows})

    def test_parts_in_order(self) -> None:
        for number in range(3):
            self.server.add_reply(201, {"part": f"p{number}", "messages": 1})
        stager = PartStager(self.staged_batch)
        stager.add(self.table(0, 0))
        stager.add(self.table(10, 1024**2))
        stager.add(self.table(10, 1024**2))
        parts = stager.finish()
        assert parts == tuple(f"p{number}" for number in range(len(parts)))
        assert len(parts) > 1
        assert stager.messages == 20
        sizes = [
            pa.ipc.open_stream(body).read_all().num_rows for _, _, body in self.server.requests
        ]
        assert sum(sizes) == 20
        assert max(len(body) for _, _, body in self.server.requests) < 12 * 1024**2
        assert {path for _, path, _ in self.server.requests} == {"/v1/stage?query=query&batch=7"}

    def test_sizes_that_differ(self) -> None:
        """The mean of the rows would put the large ones into a few parts."""
        small, large = [bytes(10)] * 3000, [bytes(3 * 1024**2)] * 12
        rows = pa.RecordBatch.from_pydict({"topic": ["t"] * 3012, "value": [*small, *large]})
        assert self.staged(rows, self.table(5, 1024**2)) == [3004, 4, 4, 5]

    def test_a_row_as_large_as_a_batch_is_alone(self) -> None:
        rows = [self.table(1, size * 1024**2) for size in (5, 30, 1)]
        assert self.staged(*rows) == [1, 1, 1]

    def staged(self, *rows: pa.RecordBatch) -> list[int]:
        """Stage ``rows`` and return the number of rows in each part."""
        for number in range(10):
            self.server.add_reply(201, {"part": f"p{number}", "messages": 1})
        stager = PartStager(self.staged_batch)
        for each in rows:
            stager.add(each)
        stager.finish()
        bodies = [body for _, _, body in self.server.requests]
        return [pa.ipc.open_stream(body).read_all().num_rows for body in bodies]

    def test_nothing_to_stage(self) -> None:
        assert PartStager(self.staged_batch).finish() == ()
        assert self.server.requests == []

    def test_commit(self) -> None:
        self.server.add_reply(200, {"duplicate": True})
        self.staged_batch.commit(["b", "a"])
        ((_, path, body),) = self.server.requests
        assert path == "/v1/commit"
        assert json.loads(body) == {"query": "query", "batch": 7, "parts": ["b", "a"]}

    def test_lost_parts(self) -> None:
        self.server.add_reply(409, {"error": "unknown-part"})
        error = raised(HistoryRefused, self.staged_batch.commit, ["a"])
        assert "restart the query" in str(error)
        self.server.add_reply(403, {"error": "forbidden"})
        raised(ErrorReply, self.staged_batch.commit, ["a"])

    def test_a_lost_reply(self) -> None:
        """The client repeats the request, as the first one may have succeeded."""
        self.server.add_reply(503, {"error": "busy"})
        self.server.add_reply(200, {"duplicate": True})
        with self.assertLogs("pubsub.pipeline", "WARNING"):
            self.staged_batch.commit(["a"])
        assert len(self.server.requests) == 2
