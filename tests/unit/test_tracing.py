"""Spans of publishes and commits, with the SDK's exporter in memory."""

from __future__ import annotations

import sys
from array import array
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pubsub.broker.routing.batch import Headers
from pubsub.broker.service import BrokerService
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topics import Topic
from pubsub.broker.wall_clock import WallClock
from pubsub.errors import ConfigurationError, HistoryUnavailable
from pubsub.interfaces import IStore
from pubsub.kernel import Columns
from pubsub.server import tap
from pubsub.server.tracing import TracedDispatcher, TracingService, make_provider
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import clock_at
from tests.unit.logs import StoreCase

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()
OTHER = f"00-{TRACE[::-1]}-{SPAN[::-1]}-01".encode()


def make_traced(store: IStore, exporter: InMemorySpanExporter) -> BrokerService:
    """Return a broker whose spans go to ``exporter``."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    clock = clock_at()
    broker = BrokerService(
        clock,
        WallClock(clock.seconds, clock.seconds),
        store,
        make_dispatcher=partial(TracedDispatcher, tracer=provider.get_tracer("test")),
    )
    assert isinstance(broker.dispatcher, TracedDispatcher)
    store.watch_commits(broker.dispatcher.committed)
    return broker


class PublishTests(SynchronousTestCase):
    """The spans of publishes"""

    def setUp(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.broker = make_traced(MemoryStore(100, 10_000), self.exporter)
        self.topic: Topic = self.broker.topics.create("t")

    def publish(self, *payloads: bytes, headers: list[Headers] | None = None) -> ReadableSpan:
        columns = Columns.of(list(payloads))
        self.broker.dispatcher.publish(self.topic, columns, b"alice", "cafe", headers)
        (span,) = self.exporter.get_finished_spans()
        return span

    def test_a_batch_is_one_span(self) -> None:
        span = self.publish(b"one", b"two")
        assert (span.name, span.parent, span.links) == ("publish t", None, ())
        assert attributes(span) == {
            "messaging.system": "pubsub",
            "messaging.operation.type": "receive",
            "messaging.operation.name": "publish",
            "messaging.destination.name": "t",
            "messaging.batch.message_count": 2,
            "messaging.message.body.size": 6,
            "network.protocol.name": "cafe",
            "pubsub.topics": 1,
        }

    def test_a_batch_of_several_topics_is_one_span(self) -> None:
        other = self.broker.topics.create("u")
        mix = self.broker.router.mix((self.topic, other))
        columns = Columns.of([b"a", b"b"], [0, 1])
        self.broker.dispatcher.publish_mixed(mix, columns, b"alice", "cafe")
        (span,) = self.exporter.get_finished_spans()
        assert span.name == "publish"
        assert attributes(span)["pubsub.topics"] == 2

    def test_gathered_messages_are_one_span(self) -> None:
        senders = (array("I", [1, 1]).tobytes(), (b"alice", b"bob"))
        columns = Columns.of([b"ab", b"c"])
        self.broker.dispatcher.publish_together((self.topic,), columns, senders, "cafe")
        (span,) = self.exporter.get_finished_spans()
        assert span.name == "publish t"
        assert attributes(span)["messaging.batch.message_count"] == 2
        assert attributes(span)["messaging.message.body.size"] == 3

    def test_the_publishers_span_is_the_parent(self) -> None:
        headers: list[Headers] = [{"traceparent": PARENT, "unit": b"C"}, {"traceparent": PARENT}]
        span = self.publish(b"a", b"b", headers=headers)
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == SPAN
        assert span.links == ()

    def test_several_publishers_are_links(self) -> None:
        headers: list[Headers] = [{"traceparent": PARENT}, {"traceparent": OTHER}, {}]
        span = self.publish(b"a", b"b", b"c", headers=headers)
        assert span.parent is None
        assert {f"{link.context.trace_id:032x}" for link in span.links} == {TRACE, TRACE[::-1]}

    def test_the_number_of_links_is_bounded(self) -> None:
        headers: list[Headers] = [
            {"traceparent": b"00-%032x-%016x-01" % (number + 1, number + 1)}
            for number in range(999)
        ]
        span = self.publish(*[b""] * 999, headers=headers)
        assert len(span.links) == 32

    def test_an_invalid_trace_context_is_ignored(self) -> None:
        for value in (b"", b"00-0-0-00", b"\xff" * 55, b"00-" + b"0" * 100_000, PARENT + b"-\0"):
            self.exporter.clear()
            span = self.publish(b"a", headers=[{"traceparent": value, "tracestate": value}])
            assert (span.parent, span.links) == (None, ())

    def test_headers_are_delivered_unchanged(self) -> None:
        self.publish(b"a", headers=[{"traceparent": PARENT}])
        page = self.successResultOf(self.broker.store.read(0, None, 1000))
        assert page.batches[0].headers == [{"traceparent": PARENT}]

    def test_a_refused_publish_is_an_error(self) -> None:
        with (
            patch.object(MemoryStore, "append", side_effect=HistoryUnavailable("full")),
            pytest.raises(HistoryUnavailable),
        ):
            self.publish(b"a")
        (span,) = self.exporter.get_finished_spans()
        assert span.status.status_code is StatusCode.ERROR

    def test_nothing_waits_for_commits_of_a_history_in_memory(self) -> None:
        self.publish(b"a")
        assert isinstance(self.broker.dispatcher, TracedDispatcher)
        assert not self.broker.dispatcher._uncommitted


class CommitTests(StoreCase):
    """The spans of commits"""

    def setUp(self) -> None:
        super().setUp()
        self.exporter = InMemorySpanExporter()
        self.broker = make_traced(self.store, self.exporter)

    def publish(self, name: str, *payloads: bytes) -> None:
        topic = self.broker.topics.create(name)
        if name == "fleeting":
            topic.set_durability(Durability.NONE)
        self.broker.dispatcher.publish(topic, Columns.of(list(payloads)), b"alice", "cafe")

    def test_a_commit_links_to_the_publishes_that_it_stores(self) -> Deferred[None]:
        return ensureDeferred(self._commit())

    async def _commit(self) -> None:
        self.publish("t", b"a", b"b")
        self.publish("fleeting", b"x")
        self.publish("u", b"c")
        assert await self.stored()
        *publishes, commit = self.exporter.get_finished_spans()
        assert [span.name for span in publishes] == ["publish t", "publish fleeting", "publish u"]
        assert commit.name == "commit"
        assert attributes(commit)["pubsub.messages"] == 3
        stored = [publishes[0].context, publishes[2].context]
        assert [link.context for link in commit.links] == stored
        assert commit.parent == publishes[0].context
        assert commit.start_time is not None
        assert commit.end_time is not None
        assert commit.start_time <= commit.end_time

    def test_a_commit_without_messages_has_no_span(self) -> Deferred[None]:
        return ensureDeferred(self._put())

    async def _put(self) -> None:
        self.store.put("table", "key", b"value")
        assert await self.stored()
        assert self.exporter.get_finished_spans() == ()


class ProviderTests(SynchronousTestCase):
    """make_provider and the setting"""

    def test_the_environment_chooses_the_exporter(self) -> None:
        with patch.dict("os.environ", {"OTEL_TRACES_EXPORTER": "console"}):
            provider, is_new = make_provider()
        self.addCleanup(provider.shutdown)
        assert is_new
        assert provider.resource.attributes["service.name"] == "pubsub"

    def test_the_name_of_the_service_can_be_given(self) -> None:
        given = {"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "mine"}
        with patch.dict("os.environ", given):
            provider, _ = make_provider()
        self.addCleanup(provider.shutdown)
        assert provider.resource.attributes["service.name"] == "mine"

    def test_an_exporter_that_is_not_installed(self) -> None:
        with (
            patch.dict("os.environ", {"OTEL_TRACES_EXPORTER": "carrier-pigeon"}),
            pytest.raises(ConfigurationError, match="no exporter 'carrier-pigeon'"),
        ):
            make_provider()

    def test_the_program_may_have_a_provider(self) -> None:
        present = TracerProvider()
        with patch.object(trace, "get_tracer_provider", return_value=present):
            assert make_provider() == (present, False)

    def test_without_the_extra_the_error_names_it(self) -> None:
        with (
            patch.dict(sys.modules, {"pubsub.server.tracing": None}),
            pytest.raises(ConfigurationError, match=r"pubsub-broker\[otel\]"),
        ):
            tap._make_tracing(Clock())


class StopTests(TestCase):
    """TracingService"""

    def test_the_last_spans_are_exported(self) -> Deferred[None]:
        flushed: list[int] = []

        class Provider(TracerProvider):
            def force_flush(self, timeout_millis: int = 30_000) -> bool:
                flushed.append(timeout_millis)
                return True

        done = TracingService(Provider(), reactor).stopService()

        def check(result: None) -> None:
            assert flushed == [2000]

        return done.addCallback(check)

    def test_a_collector_that_does_not_answer_delays_the_end_by_two_seconds(self) -> None:
        clock = Clock()
        clock.callFromThread = lambda call: None  # type: ignore[attr-defined]
        with patch.object(TracerProvider, "force_flush"):
            done = TracingService(TracerProvider(), clock).stopService()
        self.assertNoResult(done)  # type: ignore[no-untyped-call]
        clock.advance(2)
        self.successResultOf(done)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(span.attributes or {})
