"""The endpoints of the HTTP API, and the handler of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pubsub.http_api.dashboard_files import PREFIX as DASHBOARD
from pubsub.http_api.dashboard_files import DashboardFiles
from pubsub.http_api.endpoints import listing
from pubsub.http_api.exactly_once.staging import StagingHandler
from pubsub.http_api.metrics.metrics_page import MetricsPage
from pubsub.http_api.openapi import openapi
from pubsub.http_api.operators.deletions import IDENTITIES, Deletions
from pubsub.http_api.operators.operator_endpoints import OperatorEndpoints
from pubsub.http_api.operators.session_handler import SESSIONS, SessionHandler
from pubsub.http_api.operators.status_handler import StatusHandler
from pubsub.http_api.operators.topic_handler import KEY, TopicHandler
from pubsub.http_api.publishing.message_publishing import MessagePublisher, PublishHandler
from pubsub.http_api.readers.reader_leases import LEASES, ReaderLeases
from pubsub.http_api.readers.reader_positions import PREFIX, ReaderPositions
from pubsub.http_api.reading.history_handler import HistoryHandler
from pubsub.http_api.reading.history_response import RunInThread
from pubsub.http_api.reading.message_reading import MessageReader
from pubsub.http_api.requests.api_error import NOT_FOUND, ApiError
from pubsub.http_api.requests.api_request import ApiRequest
from pubsub.http_api.requests.parameters import MESSAGES, TOPICS
from pubsub.http_api.websocket.websocket_handshake import WebSockets
from pubsub.http_api.websocket.websocket_requests import RequestContext

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener

Handler = Callable[[ApiRequest], Awaitable[None]]
"""Answers a request to one endpoint."""

# Paths that end with a name.
_WITH_NAME = (PREFIX, LEASES, TOPICS, IDENTITIES, SESSIONS, DASHBOARD)
# Lists beside those of the broker's state.
_LISTS = (b"/v1/topics", b"/v1/readers")
# As `curl -d` sends it for a message.
_TO_TOPIC = (TOPICS, b"POST")
_PUBLISH = "; messages are published with POST to /v1/topics/NAME/messages"


class Routes:
    """The handlers of one listener, by path and method.

    ``run_in_thread`` is for work that would stop the reactor for long.
    """

    def __init__(self, listener: Listener, run_in_thread: RunInThread) -> None:
        self._listener = listener
        self._run_in_thread = run_in_thread
        self._positions = ReaderPositions(listener)
        self._staging = StagingHandler(listener, run_in_thread)
        self._history = HistoryHandler(listener, run_in_thread)
        operators = {**self._pages(), **self._state(), **self._operation()}
        self._operator_routes = frozenset((*operators, *_LISTS))
        self.table: dict[bytes, dict[bytes, Handler]] = {
            **operators,
            **self._topics(),
            **self._reading(),
            **self._batches(),
        }

    def restore(self) -> None:
        """Read the state of the handlers from the store, which is open."""
        self._positions.restore()
        self._staging.restore()

    def _pages(self) -> dict[bytes, dict[bytes, Handler]]:
        dashboard = DashboardFiles(listing())
        return {
            b"/": {b"GET": dashboard.index},
            DASHBOARD: {b"GET": dashboard.file},
            b"/v1": {b"GET": dashboard.listing},
            b"/v1/openapi.json": {b"GET": partial(openapi, self._listener)},
        }

    def _state(self) -> dict[bytes, dict[bytes, Handler]]:
        """The endpoints that show the state of the broker."""
        status = StatusHandler(self._listener)
        return {
            b"/healthz": {b"GET": status.healthz},
            b"/readyz": {b"GET": status.readyz},
            b"/metrics": {b"GET": MetricsPage(self._listener, self._run_in_thread).get},
            b"/v1/status": {b"GET": status.status},
            b"/v1/listeners": {b"GET": status.listeners},
            b"/v1/store": {b"GET": status.store},
            b"/v1/peers": {b"GET": status.peers},
            b"/v1/refusals": {b"GET": status.refusals},
            b"/v1/audit": {b"GET": status.audit},
            b"/v1/slow": {b"GET": status.slow},
            b"/v1/subscriptions": {b"GET": status.subscriptions},
        }

    def _operation(self) -> dict[bytes, dict[bytes, Handler]]:
        operations = OperatorEndpoints(self._listener)
        sessions = SessionHandler(self._listener)
        return {
            b"/v1/configuration": {b"GET": operations.configuration},
            b"/v1/drain": {b"POST": operations.drain},
            b"/v1/sessions": {b"GET": sessions.list},
            SESSIONS: {b"GET": sessions.one, b"DELETE": sessions.disconnect},
        }

    def _topics(self) -> dict[bytes, dict[bytes, Handler]]:
        """The endpoints of topics and of their messages."""
        listener = self._listener
        publisher = MessagePublisher(listener)
        publishing = PublishHandler(listener, publisher, self._run_in_thread)
        sockets = WebSockets(RequestContext(listener, publisher, self._positions))
        reading = MessageReader(listener, self._history)
        deletions = Deletions(listener)
        topics = TopicHandler(listener, self._history)
        return {
            b"/v1/topics": {b"GET": topics.list},
            TOPICS: {b"GET": topics.one, b"PUT": topics.create, b"DELETE": deletions.delete_topic},
            KEY: {b"POST": topics.rotate},
            MESSAGES: {b"GET": reading.get, b"POST": publishing.post},
            b"/v1/ws": {b"GET": sockets.upgrade},
            IDENTITIES: {b"DELETE": deletions.delete_identity},
        }

    def _reading(self) -> dict[bytes, dict[bytes, Handler]]:
        """The endpoints of the history and of its readers."""
        history, positions, leases = self._history, self._positions, ReaderLeases(self._listener)
        return {
            b"/v1/bounds": {b"GET": history.bounds},
            b"/v1/history": {b"GET": history.get, b"POST": history.post},
            b"/v1/readers": {b"GET": positions.list},
            PREFIX: {b"GET": positions.get, b"PUT": positions.put, b"DELETE": positions.delete},
            LEASES: {b"PUT": leases.put, b"DELETE": leases.delete},
        }

    def _batches(self) -> dict[bytes, dict[bytes, Handler]]:
        """The endpoints that write a batch exactly once."""
        staging = self._staging
        return {
            b"/v1/limits": {b"GET": staging.limits},
            b"/v1/stage": {b"POST": staging.stage},
            b"/v1/commit": {b"POST": staging.commit},
            b"/v1/abort": {b"POST": staging.abort},
        }

    def is_for_operators(self, path: bytes) -> bool:
        """Return whether operators need this endpoint while the memory bound is reached."""
        return route_of(path) in self._operator_routes

    def handler(self, request: ApiRequest) -> Handler:
        """Return the handler of a request; raises ApiError if there is none."""
        route = route_of(request.path)
        methods = self.table.get(route)
        if methods is None:
            raise ApiError(NOT_FOUND, "not-found", "no such endpoint; GET /v1 lists them")
        method = b"GET" if request.method == b"HEAD" else request.method
        handler = methods.get(method)
        if handler is None:
            allowed = ", ".join(_allowed(methods))
            if method == b"OPTIONS":
                return partial(_options, allowed=allowed)
            raise ApiError.of_method(allowed, _PUBLISH if (route, method) == _TO_TOPIC else "")
        return handler


def is_messages(path: bytes) -> bool:
    """Return whether this is the path of a topic's messages."""
    return path.startswith(TOPICS) and path[len(TOPICS) :].endswith(MESSAGES)


def route_of(path: bytes) -> bytes:
    """Return the heading under which the endpoints of this path are listed."""
    if is_messages(path):
        return MESSAGES
    if path.startswith(TOPICS) and path[len(TOPICS) :].endswith(KEY):
        return KEY
    return next((one for one in _WITH_NAME if path.startswith(one)), path)


def _allowed(methods: Iterable[bytes]) -> Iterator[str]:
    for method in methods:
        yield method.decode()
        if method == b"GET":
            yield "HEAD"
    yield "OPTIONS"


async def _options(request: ApiRequest, allowed: str) -> None:
    request.answer(204, b"", headers={"Allow": allowed})
