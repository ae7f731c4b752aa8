"""The sink over the protocols: from a URL to a client, and from rows to its messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import NotPublished, OutcomeUnknown, Refusal, Uncertain
from pubsub.client.notices import Notice
from pubsub.errors import ConfigurationError
from pubsub.pipeline.options.connector_options import sink_options
from pubsub.pipeline.publishing import publisher_urls
from pubsub.pipeline.publishing.publisher_urls import UrlColumns, client_options, find_destination
from pubsub.pipeline.sink import BatchWriter, TaskResult, current_batch
from pubsub.pipeline.source import PubSubSource
from tests.unit.raising import raised
from tests.unit.sink_batches import frame, struct
from tests.unit.sink_clients import RecordingClient


def destination(url: str, **given: str) -> UrlColumns:
    """Return the destination of a sink's options."""
    return find_destination(sink_options({"url": url, **given}, client_options()))


class UrlTests(SynchronousTestCase):
    """The broker that a task connects to, and its identity"""

    def test_a_task_connects_as_spark(self) -> None:
        client = RecordingClient()
        self.patch(publisher_urls, "connect", client.connect)  # type: ignore[no-untyped-call]
        publishers = destination("cafe://h:17", channels="9:orders").publishers
        assert publishers is not None
        with publishers():
            pass
        assert (client.url, client.options["client_id"]) == ("cafe://h:17", "spark")
        assert client.options["channels"] == "9:orders"
        assert client.options["token"] is None
        assert client.closed

    def test_the_token_is_passed_and_not_shown(self) -> None:
        client = RecordingClient()
        self.patch(publisher_urls, "connect", client.connect)  # type: ignore[no-untyped-call]
        publishers = destination("fast://h", token="a.b.c").publishers
        assert publishers is not None
        assert "a.b.c" not in repr(publishers)
        with publishers():
            assert client.options["token"] == "a.b.c"

    def test_destinations_have_their_optional_columns(self) -> None:
        assert destination("http://h").optional_columns == ("key", "headers")
        assert destination("nsd+tls://h").optional_columns == ("key",)
        assert destination("cafe://h").optional_columns == ()

    def test_parameters_that_do_not_exist(self) -> None:
        for url in ("rheos://h?layout=other", "nsd://h?layout=spec", "rheos://h?window="):
            assert "option url" in str(raised(ConfigurationError, destination, url))


class WriterTests(SynchronousTestCase):
    """Rows of a task"""

    def writer(self, url: str, columns: str, **given: str) -> BatchWriter:
        writer = PubSubSource({"url": url, **given}).writer(struct(columns), False)
        assert isinstance(writer, BatchWriter)
        return writer

    def write(self, url: str, columns: str, *frames: pa.RecordBatch, **given: str) -> Any:
        """Return the result of a task with these rows."""
        return self.writer(url, columns, **given).write(iter(frames))

    def recording(self, reply: Notice | None = None) -> RecordingClient:
        """Return the client that tasks use."""
        client = RecordingClient(reply)
        self.patch(publisher_urls, "connect", client.connect)  # type: ignore[no-untyped-call]
        return client

    def test_they_are_published_before_the_task_ends(self) -> None:
        client = self.recording()
        result = self.write(
            "nsd://h",
            "topic string, value string, key string",
            frame(topic=["a", "b"], value=["1", "2"], key=["ada", None]),
            frame(topic=["a", "a"], value=["3", "4"], key=["bob", "bob"]),
        )
        assert isinstance(result, TaskResult)
        assert (result.messages, result.parts) == (4, ())
        assert client.published == [
            ("a", [b"1"], b"ada"),
            ("a", [b"3", b"4"], b"bob"),
            ("b", [b"2"], None),
        ]
        assert client.closed

    def test_a_window_at_a_time(self) -> None:
        client = self.recording()
        values = [b"%d" % number for number in range(2500)]
        self.write("nsd://h", "value binary", frame(value=values), topic="a")
        assert [len(payloads) for _, payloads, _ in client.published] == [1000, 1000, 500]

    def test_a_topic_for_rows_without_one(self) -> None:
        client = self.recording()
        rows = frame(topic=["a", None], value=[b"1", b"2"])
        self.write("nsd://h", "topic string, value binary", rows, topic="rest")
        assert [topic for topic, _, _ in client.published] == ["a", "rest"]

    def test_a_refusal_fails_the_task_and_closes_the_connection(self) -> None:
        rows = frame(topic=["a"], value=["1"])
        for reply, kind in (
            (Refusal(1, "full"), NotPublished),
            (Uncertain(1, "full"), OutcomeUnknown),
        ):
            client = self.recording(reply)
            error = raised(kind, self.write, "nsd://h", "topic string, value string", rows)
            assert "full" in str(error)
            assert client.closed

    def test_there_is_nothing_to_commit(self) -> None:
        writer = self.writer("nsd://h", "topic string, value string")
        results: list[WriterCommitMessage | None] = [TaskResult("query", 1), None]
        writer.commit(results)
        writer.abort(results)


class BatchIdTests(SynchronousTestCase):
    """The properties that Spark passes to the task of a stream"""

    def test_query_and_batch_are_properties_of_the_task(self) -> None:
        given = {
            "sql.streaming.queryId": "query",
            "streaming.sql.batchId": "7",
            "spark.jobGroup.id": "run",
        }

        class Context:
            @staticmethod
            def getLocalProperty(name: str) -> str | None:
                return given.get(name)

        self.patch(TaskContext, "get", Context)  # type: ignore[no-untyped-call]
        assert current_batch() == ("query", 7, "run")
        del given["spark.jobGroup.id"]
        assert current_batch() == ("query", 7, "")
