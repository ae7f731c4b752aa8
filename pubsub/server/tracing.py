"""OpenTelemetry: spans for publishes and commits. Imported only with the setting ``otel``.

A span is of a read's messages, not of one message. A publisher's trace context is in the header
``traceparent`` of a message (W3C Trace Context); headers are delivered unchanged, so subscribers
see it too. A span has the publisher's as its parent, or links to several if the messages differ.
The span of a commit links to the publishes that it stores.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points
from itertools import islice
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from twisted.application.service import Service
from twisted.internet.defer import Deferred

from pubsub.broker.routing.batch import Headers
from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.build_info import version
from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns, Senders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.context import Context

    from pubsub.broker.figures.traffic import PublisherTally
    from pubsub.broker.publishing.address_mixes import ReadMix
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.router import Router
    from pubsub.broker.service import BrokerService
    from pubsub.broker.topic_space.topic_registry import TopicRegistry
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore

# Messages of a batch whose headers are looked at, links of a span, and publishes that wait for
# their commit: further ones are not linked.
_LOOKED_AT, _LINKS, _WAITING = 64, 32, 1024
# Bytes of the largest header with trace context that is read: 512 in practice.
_CONTEXT_BYTES = 1024
# Seconds that the last spans may take at the end.
_FLUSH_SECONDS = 2.0
_EXPORTER = "otlp_proto_http"
_PROPAGATOR = TraceContextTextMapPropagator()


class _HeaderGetter(Getter[Headers]):
    """Reads trace context from the headers of a message."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        """See ``Getter``."""
        value = carrier.get(key)
        if value is None or len(value) > _CONTEXT_BYTES:
            return None
        return [value.decode(errors="replace")]

    def keys(self, carrier: Headers) -> list[str]:
        """See ``Getter``."""
        return list(carrier)


_GETTER = _HeaderGetter()


class TracedDispatcher(Dispatcher):
    """A dispatcher whose publishes are spans of ``tracer``."""

    def __init__(
        self,
        topics: TopicRegistry,
        store: IStore,
        router: Router,
        timestamp: Callable[[], int],
        run_id: int,
        *,
        tracer: Tracer,
    ) -> None:
        super().__init__(topics, store, router, timestamp, run_id)
        self._tracer = tracer
        # The last offset and the span of publishes that are not committed.
        self._uncommitted: deque[tuple[int, SpanContext]] = deque(maxlen=_WAITING)

    def publish(
        self,
        topic: Topic,
        columns: Columns,
        sender: bytes,
        protocol: str,
        headers: Sequence[Headers] | None = None,
        publisher: PublisherTally | None = None,
    ) -> Batch:
        """See ``Dispatcher``."""
        with self._span((topic.name,), columns, protocol, headers) as context:
            batch = super().publish(topic, columns, sender, protocol, headers, publisher)
            if topic.durability and topic.upstream is None:
                self._wait(context)
        return batch

    def publish_mixed(
        self,
        mix: ReadMix,
        columns: Columns,
        sender: bytes | Senders,
        protocol: str,
        headers: Sequence[Headers] | None = None,
        publisher: PublisherTally | None = None,
    ) -> Batch:
        """See ``Dispatcher``."""
        # The mix may have topics without messages.
        names = [mix.names[index] for index, _, _ in columns.totals()]
        with self._span(names, columns, protocol, headers) as context:
            batch = super().publish_mixed(mix, columns, sender, protocol, headers, publisher)
            if mix.durability:
                self._wait(context)
        return batch

    def publish_together(
        self, topics: Sequence[Topic], columns: Columns, senders: Senders, protocol: str
    ) -> Batch:
        """See ``Dispatcher``: there is one span for all of them."""
        names = [topic.name for topic in topics]
        with self._span(names, columns, protocol, None) as context:
            batch = super().publish_together(topics, columns, senders, protocol)
            if topics[0].durability:
                self._wait(context)
        return batch

    @contextmanager
    def _span(
        self,
        topics: Sequence[str],
        columns: Columns,
        protocol: str,
        headers: Sequence[Headers] | None,
    ) -> Iterator[SpanContext]:
        parent, links = _origin(headers)
        attributes: Mapping[str, Any] = {
            "messaging.system": "pubsub",
            "messaging.operation.type": "receive",
            "messaging.operation.name": "publish",
            "messaging.destination.name": topics[0] if len(topics) == 1 else "",
            "messaging.batch.message_count": columns.count,
            "messaging.message.body.size": columns.nbytes,
            "network.protocol.name": protocol,
            "pubsub.topics": len(topics),
        }
        name = f"publish {topics[0]}" if len(topics) == 1 else "publish"
        with self._tracer.start_as_current_span(
            name, parent, SpanKind.CONSUMER, attributes, links
        ) as span:
            yield span.get_span_context()

    def _wait(self, context: SpanContext) -> None:
        """Have the commit of the last message in the history reported."""
        if self._store.durable and context.trace_flags.sampled:
            self._uncommitted.append((self._store.next_offset - 1, context))

    def committed(self, messages: int, nbytes: int, seconds: float) -> None:
        """A group was written, ``seconds`` after its first message (see ``CommitWatcher``)."""
        links: list[Link] = []
        end, waiting = self._store.committed, self._uncommitted
        while waiting and waiting[0][0] < end:
            _, context = waiting.popleft()
            if len(links) < _LINKS:
                links.append(Link(context))
        if not links:
            # Of no publish that is sampled.
            return
        now = time.time_ns()
        span = self._tracer.start_span(
            "commit",
            trace.set_span_in_context(trace.NonRecordingSpan(links[0].context)),
            SpanKind.INTERNAL,
            {"pubsub.messages": messages, "pubsub.bytes": nbytes},
            links,
            start_time=now - int(seconds * 1e9),
        )
        span.end(now)


def _origin(headers: Sequence[Headers] | None) -> tuple[Context | None, list[Link]]:
    """Return the context that all messages come from, or links to their different contexts."""
    if headers is None:
        return None, []
    found: dict[tuple[int, int], tuple[SpanContext, Context]] = {}
    for one in islice(headers, _LOOKED_AT):
        if "traceparent" in one:
            context = _PROPAGATOR.extract(one, getter=_GETTER)
            span = trace.get_current_span(context).get_span_context()
            if span.is_valid:
                found.setdefault((span.trace_id, span.span_id), (span, context))
    if len(found) == 1:
        ((_, parent),) = found.values()
        return parent, []
    return None, [Link(span) for span, _ in islice(found.values(), _LINKS)]


def make_provider() -> tuple[TracerProvider, bool]:
    """Return the program's provider if it has one, otherwise a new one, and whether it is new.

    A new one exports as OTEL_TRACES_EXPORTER says, ``otlp_proto_http`` by default; the exporter and
    the sampler have further variables of the same specification. Raises ConfigurationError.
    """
    present = trace.get_tracer_provider()
    if isinstance(present, TracerProvider):
        return present, False
    name = os.environ.get("OTEL_TRACES_EXPORTER", _EXPORTER)
    name = _EXPORTER if name == "otlp" else name
    found = tuple(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise ConfigurationError(
            f"otel: there is no exporter {name!r}; install it, or set OTEL_TRACES_EXPORTER=console"
        )
    resource = Resource.create({"service.version": version()})
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "pubsub"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(found[0].load()()))
    return provider, True


class Tracing:
    """The tracing of one broker: it makes the dispatcher, and stops with the broker."""

    def __init__(self, reactor: Any) -> None:
        self._provider, self._is_ours = make_provider()
        self._reactor = reactor
        self.make_dispatcher = partial(
            TracedDispatcher, tracer=self._provider.get_tracer("pubsub", version())
        )

    def attach(self, broker: BrokerService) -> None:
        """Follow the commits of ``broker``, and export the last spans when it stops."""
        dispatcher = broker.dispatcher
        assert isinstance(dispatcher, TracedDispatcher)
        broker.store.watch_commits(dispatcher.committed)
        if self._is_ours:
            service = TracingService(self._provider, self._reactor)
            service.setServiceParent(broker)  # type: ignore[no-untyped-call]


class TracingService(Service):
    """Exports the last spans when the broker stops, within two seconds."""

    def __init__(self, provider: TracerProvider, reactor: Any) -> None:
        self._provider = provider
        self._reactor = reactor

    def stopService(self) -> Deferred[None]:
        """See ``IService``."""
        done: Deferred[None] = Deferred()
        late = self._reactor.callLater(_FLUSH_SECONDS, done.callback, None)

        def finish() -> None:
            if late.active():
                late.cancel()
                done.callback(None)

        def flush() -> None:
            self._provider.force_flush(int(_FLUSH_SECONDS * 1000))
            self._reactor.callFromThread(finish)

        # As a daemon, as an exporter may not end.
        threading.Thread(target=flush, name="otel-flush", daemon=True).start()
        return done
