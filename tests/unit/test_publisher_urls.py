"""The sink over the protocols: from a URL to a publisher, and from rows to its bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.connector_options import sink_options
from pubsub.pipeline.publisher_urls import Destination, client_options, find_destination
from pubsub.pipeline.sink import BatchWriter, TaskResult, current_batch
from pubsub.pipeline.source import PubSubSource
from pubsub.wire.blocking_publisher import BlockingPublisher, NotPublished
from tests.unit import cafe_wire, fast_wire, nsd_lines, rheos_wire
from tests.unit.raising import raised
from tests.unit.sockets import HouseSocket, ScriptedSocket, connect_to
from tests.unit.streams import House
from tests.unit.test_pipeline_sink import frame, struct


def destination(url: str, **given: str) -> Destination:
    """Return the destination of a sink's options."""
    return find_destination(sink_options({"url": url, **given}, client_options()))


def publish_one(client: BlockingPublisher, topic: str) -> None:
    client.add(topic, b"x")
    client.finish()


class UrlTests(SynchronousTestCase):
    """The address that is connected to, and the first bytes sent"""

    def first_bytes(self, url: str, topic: str, **given: str) -> tuple[tuple[str, int], bytes]:
        """Return the address that a publisher connects to, and what it sends without a reply."""
        made = ScriptedSocket()
        calls = connect_to(self, made)
        publishers = destination(url, **given).publishers
        assert publishers is not None
        with publishers() as client:
            raised(PubSubError, publish_one, client, topic)
        ((address, _),) = calls
        return address, bytes(made.sent)

    def test_cafe(self) -> None:
        address, sent = self.first_bytes("cafe://h", "cafe/3")
        assert (address, sent) == (("h", 7070), cafe_wire.hs_pub(3, b"spark"))
        address, sent = self.first_bytes("cafe://h:17", "orders", channels="9:orders")
        assert (address, sent) == (("h", 17), cafe_wire.hs_pub(9, b"spark"))

    def test_nsd(self) -> None:
        address, sent = self.first_bytes("nsd://h", "orders")
        assert address == ("h", 7071)
        assert sent.splitlines()[0] == b'{"_class":"OpenRequest","identity":"orders"}'

    def test_rheos(self) -> None:
        address, sent = self.first_bytes("rheos://h", "news")
        assert address == ("h", 7072)
        assert sent.startswith(rheos_wire.create(sent[5:21]))
        _, sent = self.first_bytes("rheos://h?layout=original&checksum=crc32", "news")
        request = rheos_wire.original(rheos_wire.CREATE, sent[6:22], b"news")
        assert sent.startswith(rheos_wire.sealed(request))

    def test_spot(self) -> None:
        address, sent = self.first_bytes("spot://[::1]:7373", "news")
        assert address == ("::1", 7373)
        assert sent.startswith(b"\xff")

    def test_fast(self) -> None:
        address, sent = self.first_bytes("fast://h", "news", token="a.b.c")
        assert address == ("h", 7074)
        assert sent.startswith(fast_wire.unsubscribe(b"a.b.c"))

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

    def test_they_are_published_before_the_task_ends(self) -> None:
        house = House({"nsd": {}})
        socket = HouseSocket(house, "nsd")
        connect_to(self, socket)
        result = self.write(
            "nsd://h",
            "topic string, value string, key string",
            frame(topic=["a", "b"], value=["1", "2"], key=["ada", None]),
            frame(topic=["a"], value=["3"], key=["bob"]),
        )
        assert isinstance(result, TaskResult)
        assert (result.messages, result.parts) == (3, ())
        page = self.successResultOf(house.store.read(0, None, 2**20))
        found = [(b.topic, b.sender, payload) for b in page.batches for payload in b.payloads()]
        assert sorted(found) == [("a", b"ada", b"1"), ("a", b"bob", b"3"), ("b", b"", b"2")]
        assert socket.closed

    def test_a_topic_for_rows_without_one(self) -> None:
        socket = ScriptedSocket([nsd_lines.SUCCESS * 5])
        connect_to(self, socket)
        rows = frame(topic=["a", None], value=[b"1", b"2"])
        self.write("nsd://h", "topic string, value binary", rows, topic="rest")
        opened = [line for line in bytes(socket.sent).splitlines() if b"OpenRequest" in line]
        assert [line.rstrip(b"\n") + b"\n" for line in opened] == [
            b'{"_class":"OpenRequest","identity":"a"}\n',
            b'{"_class":"OpenRequest","identity":"rest"}\n',
        ]

    def test_a_refusal_fails_the_task_and_closes_the_connection(self) -> None:
        socket = ScriptedSocket([nsd_lines.SUCCESS, nsd_lines.error("full")])
        connect_to(self, socket)
        rows = frame(topic=["a"], value=["1"])
        error = raised(NotPublished, self.write, "nsd://h", "topic string, value string", rows)
        assert "full" in str(error)
        assert socket.closed

    def test_there_is_nothing_to_commit(self) -> None:
        writer = self.writer("nsd://h", "topic string, value string")
        connect_to(self, ScriptedSocket())
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
