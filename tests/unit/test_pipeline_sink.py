"""The writers as Spark calls them: pickled copies in the workers, another in the driver."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline import sink
from pubsub.pipeline.histories.history import HistoryRefused
from pubsub.pipeline.sink import BatchWriter, StreamWriter, TaskResult, current_batch
from pubsub.pipeline.source import PubSubSource
from tests.unit.http_case import TOKEN, HttpCase
from tests.unit.raising import raised
from tests.unit.sink_batches import frame, struct

_Messages = list[WriterCommitMessage | None]


class WriterCase(HttpCase):
    def source(self, **given: str) -> PubSubSource:
        lower = {key.lower(): value for key, value in given.items()}
        return PubSubSource({"url": self.server.url, "token": TOKEN, **lower})

    def batch_writer(self, schema: str = "topic string, value binary", **given: str) -> BatchWriter:
        writer = self.source(**given).writer(struct(schema), False)
        assert isinstance(writer, BatchWriter)
        return writer

    def stream_writer(self, schema: str = "topic string, value binary") -> StreamWriter:
        self.server.add_reply(200, {"batch_bytes": 1, "message_bytes": 1})
        writer = self.source().streamWriter(struct(schema), False)
        # The token was checked.
        assert self.server.requests.pop()[:2] == ("GET", "/v1/limits")
        assert isinstance(writer, StreamWriter)
        return writer

    def staged(self) -> list[list[dict[str, Any]]]:
        """Return the rows of each staged part."""
        return [
            pa.ipc.open_stream(body).read_all().to_pylist()
            for _, path, body in self.server.requests
            if path.startswith("/v1/stage")
        ]


class BatchWriterTests(WriterCase):
    def test_staged_by_tasks_and_committed_by_the_driver(self) -> None:
        writer = self.batch_writer()
        for part in ("a", "b", None):
            self.server.add_reply(*((201, {"part": part}) if part else (200, {"duplicate": False})))
        messages: _Messages = []
        for number in range(2):
            worker = pickle.loads(pickle.dumps(writer))
            found = worker.write(iter([frame(topic=["t"], value=[b"%d" % number])]))
            messages.append(pickle.loads(pickle.dumps(found)))
        pickle.loads(pickle.dumps(writer)).commit(messages)
        assert self.staged() == [[{"topic": "t", "value": b"%d" % number}] for number in range(2)]
        path, body = self.server.requests[-1][1:]
        asked = json.loads(body)
        assert (path, asked["parts"], asked["batch"]) == ("/v1/commit", ["a", "b"], 0)
        assert asked["query"].startswith("batch-")
        assert all(f"query={asked['query']}&batch=0" in ask[1] for ask in self.server.requests[:2])

    def test_parts_of_a_frame_that_is_not_atomic_are_batches_of_their_own(self) -> None:
        writer = self.batch_writer(atomic="false")
        self.server.add_reply(200, {"batch_bytes": 4000, "message_bytes": 1})
        for _ in range(4):
            self.server.add_reply(201, {"part": "a"})
            self.server.add_reply(200, {"duplicate": False})
        table = frame(topic=["t"] * 8, value=[b"%d" % n * 1000 for n in range(8)])
        message = pickle.loads(pickle.dumps(writer)).write(iter([table]))
        writer.commit([message])
        assert isinstance(message, TaskResult)
        assert (message.messages, message.parts) == (8, ())
        rows = [row["value"][:1] for part in self.staged() for row in part]
        assert rows == [b"%d" % n for n in range(8)]
        commits = [json.loads(body) for _, path, body in self.server.requests if "commit" in path]
        assert [commit["batch"] for commit in commits] == list(range(len(commits)))
        assert len(commits) == 4
        assert {commit["query"] for commit in commits} == {f"{writer._query}/0"}

    def test_atomic_is_for_frames_over_http(self) -> None:
        with pytest.raises(ConfigurationError, match="atomic=false"):
            self.source(atomic="false").streamWriter(struct("topic string, value binary"), False)
        with pytest.raises(ConfigurationError, match="atomic=false"):
            PubSubSource({"url": "cafe://h:1", "atomic": "false"}).writer(
                struct("topic string, value binary"), False
            )

    def test_every_save_is_a_query_of_its_own(self) -> None:
        for _ in range(2):
            self.server.add_reply(201, {"part": "a"})
            self.batch_writer().write(iter([frame(topic=["t"], value=[b""])]))
        first, second = (path for _, path, _ in self.server.requests)
        assert first != second

    def test_no_rows_no_requests(self) -> None:
        writer = self.batch_writer()
        message = writer.write(iter([frame(topic=[], value=[])]))
        assert isinstance(message, TaskResult)
        assert (message.messages, message.parts) == (0, ())
        writer.commit([message, None])
        assert self.server.requests == []

    def test_abort(self) -> None:
        writer = self.batch_writer()
        writer.abort([None, None])
        assert self.server.requests == []
        self.server.add_reply(204)
        writer.abort([None, TaskResult("query", 1, ("a",))])
        ((_, path, body),) = self.server.requests
        assert (path, json.loads(body)) == ("/v1/abort", {"query": "query", "batch": 0})

    def test_rows_of_a_topic_stay_in_order(self) -> None:
        self.server.add_reply(201, {"part": "a"})
        values = [b"%d" % number for number in range(1000)]
        topics = [str(number % 7) for number in range(1000)]
        self.batch_writer().write(iter([frame(topic=topics, value=values)]))
        (rows,) = self.staged()
        for topic in set(topics):
            expected = [v for v, t in zip(values, topics, strict=True) if t == topic]
            assert [row["value"] for row in rows if row["topic"] == topic] == expected

    def test_text_and_nulls(self) -> None:
        self.server.add_reply(201, {"part": "a"})
        writer = self.batch_writer("value string, key string", topic="t")
        writer.write(iter([frame(value=["\N{SNOWMAN}", ""], key=["k", None])]))
        assert self.staged() == [
            [
                {"topic": "t", "value": "\N{SNOWMAN}".encode(), "key": b"k"},
                {"topic": "t", "value": b"", "key": None},
            ]
        ]
        for topic, value in ((None, b""), ("t", None)):
            rows = iter([frame(topic=[topic], value=[value])])
            raised(ConfigurationError, self.batch_writer().write, rows)


class StreamWriterTests(WriterCase):
    def test_by_the_ids_of_query_and_batch(self) -> None:
        self.patch(sink, "current_batch", lambda: ("the-query", 7, "a-run"))  # type: ignore[no-untyped-call]
        writer = self.stream_writer()
        self.server.add_reply(201, {"part": "a"})
        message = writer.write(iter([frame(topic=["t"], value=[b"x"])]))
        assert self.server.requests[0][1] == "/v1/stage?query=the-query&batch=7&run=a-run"
        # Another process, which knows only the messages and the id of the batch.
        another = self.stream_writer()
        self.server.add_reply(200, {"duplicate": False})
        another.commit([message], 7)
        asked = json.loads(self.server.requests[-1][2])
        assert asked == {"query": "the-query", "batch": 7, "parts": ["a"]}
        self.server.add_reply(204)
        another.abort([message], 7)
        assert json.loads(self.server.requests[-1][2]) == {"query": "the-query", "batch": 7}

    def test_a_batch_that_the_broker_has(self) -> None:
        """The last one is run again; an earlier one shows an old checkpoint."""
        self.patch(sink, "current_batch", lambda: ("the-query", 7, "a-run"))  # type: ignore[no-untyped-call]
        writer = self.stream_writer()
        self.server.add_reply(201, {"part": "a"})
        message = writer.write(iter([frame(topic=["t"], value=[b"x"])]))
        self.server.add_reply(200, {"duplicate": True, "first": 0, "next": 1, "messages": 1})
        writer.commit([message], 7)
        self.server.add_reply(200, {"duplicate": True})
        self.server.add_reply(200, {"first": 0, "next": 9, "epoch": "1-0"})
        with pytest.raises(HistoryRefused, match="has a later batch of this query than 7: the ch"):
            writer.commit([message], 7)
        # Of brokers that share a history, another one may have published it.
        self.server.add_reply(200, {"duplicate": True})
        self.server.add_reply(200, {"first": 0, "next": 9, "epoch": "1-0", "position": "x"})
        writer.commit([message], 7)

    def test_outside_of_a_task(self) -> None:
        raised(PubSubError, current_batch)


class ColumnTests(WriterCase):
    def refused(self, words: str, schema: str, **given: str) -> None:
        error = raised(ConfigurationError, self.batch_writer, schema, **given)
        assert words in str(error)

    def test_valid_columns(self) -> None:
        for schema in (
            "topic string, value binary",
            "value string, topic string, key binary",
            "topic string, value binary, headers headers",
        ):
            self.batch_writer(schema)
        self.batch_writer("value string", topic="t")

    def test_invalid_columns(self) -> None:
        self.refused("column value is required", "topic string")
        self.refused("column topic or option topic", "value string")
        self.refused("column offset cannot be", "topic string, value string, offset int")
        self.refused("must be string, not int", "topic int, value string")
        self.refused("must be binary or string, not int", "topic string, value int")
        self.refused("column headers must be", "topic string, value string, headers string")

    def test_columns_of_kafkas_source(self) -> None:
        schema = "key binary, value binary, topic string, partition int, offset int"
        self.refused("column partition cannot be", schema)
        writer = self.batch_writer(schema, columns="kafka")
        self.server.add_reply(201, {"part": "a"})
        rows = frame(key=[b"k"], value=[b"v"], topic=["t"], partition=[3], offset=[7])
        writer.write(iter([rows]))
        assert self.staged() == [[{"topic": "t", "value": b"v", "key": b"k"}]]
        self.refused("column weight cannot be", f"{schema}, weight int", columns="kafka")

    def test_the_option_topic_overrides_the_column_as_with_kafka(self) -> None:
        """Otherwise a copy of a topic would be published to the topic that it is read from."""
        for columns, expected in (("pubsub", ["source", "copy"]), ("kafka", ["copy", "copy"])):
            self.server.add_reply(201, {"part": "a"})
            writer = self.batch_writer(topic="copy", columns=columns)
            writer.write(iter([frame(topic=["source", None], value=[b"", b""])]))
            assert sorted(row["topic"] for row in self.staged()[-1]) == sorted(expected)

    def test_overwriting(self) -> None:
        schema = struct("topic string, value binary")
        error = raised(ConfigurationError, self.source().writer, schema, True)
        assert "append" in str(error)
