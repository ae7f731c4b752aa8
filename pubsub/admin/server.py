"""The HTTP API: its settings, its endpoints, and the factory of its listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory, IProtocolNegotiationFactory
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from zope.interface import implementer

from pubsub.admin.api_error import BAD_REQUEST, INTERNAL, NOT_FOUND, PROBLEM, ApiError
from pubsub.admin.api_request import ApiRequest
from pubsub.admin.dashboard_files import PREFIX as DASHBOARD
from pubsub.admin.dashboard_files import DashboardFiles
from pubsub.admin.deletions import IDENTITIES, Deletions
from pubsub.admin.endpoints import listing
from pubsub.admin.history_handler import HistoryHandler
from pubsub.admin.history_stream import RunInThread
from pubsub.admin.http_channel import Channel
from pubsub.admin.message_publishing import PROTOCOL, MessagePublisher, PublishHandler
from pubsub.admin.message_reading import MessageReader
from pubsub.admin.metrics_page import MetricsPage
from pubsub.admin.openapi import openapi
from pubsub.admin.operations import Operations
from pubsub.admin.parameters import MESSAGES, TOPICS
from pubsub.admin.reader_leases import LEASES, ReaderLeases
from pubsub.admin.reader_positions import PREFIX, ReaderPositions
from pubsub.admin.request_origin import SETTINGS as ORIGIN_SETTINGS
from pubsub.admin.request_origin import RequestOrigin
from pubsub.admin.session_handler import SESSIONS, SessionHandler
from pubsub.admin.shares import Shares
from pubsub.admin.staging import StagingHandler
from pubsub.admin.status_handler import StatusHandler
from pubsub.admin.topic_handler import KEY, TopicHandler
from pubsub.admin.websocket_handshake import WebSockets
from pubsub.admin.websocket_requests import RequestParts
from pubsub.errors import Refused
from pubsub.settings import SECONDS, SIZE, Setting, integer
from pubsub.store.threads import Worker

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.listener import Listener

log = Logger()
Handler = Callable[[ApiRequest], Awaitable[None]]
"""Answers a request to one endpoint."""

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "max-streams",
        integer(1, 10_000),
        32,
        "streams of the history at a time; a client may read as many as it leaves to others",
    ),
    Setting(
        "max-message", SIZE, "1M", "bytes of a request that publishes, and of a WebSocket message"
    ),
    Setting(
        "max-subscriptions", integer(0, 10**9), 10_000, "subscriptions of a WebSocket connection"
    ),
    Setting("max-readers", integer(0, 10**6), 1000, "readers of one owner that are stored"),
    # Subscribers receive a batch at once, so this is far below the default of slow-bytes.
    Setting("max-batch", SIZE, "32M", "bytes of a batch, and of each of its parts"),
    Setting("max-staged", SIZE, "256M", "bytes staged for batches that are not committed yet"),
    Setting("stage-seconds", SECONDS, 600, "seconds after which a staged part is dropped"),
    *ORIGIN_SETTINGS,
)
# Bytes of any body that is not a part.
_MAX_BODY = 1024**2
# Bytes of all such bodies that arrive or are being worked on.
_MAX_BODIES = 64 * 1024**2
_THREADS = 2
# Paths that end with a name.
_WITH_NAME = (PREFIX, LEASES, TOPICS, IDENTITIES, SESSIONS, DASHBOARD)


@implementer(IProtocolNegotiationFactory)
class AdminFactory(Factory):
    """Builds the connections of the API's listener."""

    noisy = False

    def __init__(self, listener: Listener, run_in_thread: RunInThread) -> None:
        self.listener = listener
        listener.event_protocol = PROTOCOL
        self.staged_shares = Shares(lambda: listener.settings["max-staged"])
        self.body_shares = Shares(lambda: _MAX_BODIES)
        self._origin = RequestOrigin(listener.settings)
        self._positions = positions = ReaderPositions(listener)
        leases = ReaderLeases(listener)
        self._staging = staging = StagingHandler(listener, run_in_thread)
        history = HistoryHandler(listener, run_in_thread)
        publisher = MessagePublisher(listener)
        publishing = PublishHandler(listener, publisher, run_in_thread)
        sockets = WebSockets(RequestParts(listener, publisher, positions))
        reading = MessageReader(listener, history)
        deletions = Deletions(listener)
        dashboard = DashboardFiles(listing())
        operations = Operations(listener)
        topics = TopicHandler(listener, history)
        sessions = SessionHandler(listener)
        status = StatusHandler(listener)
        self._routes: dict[bytes, dict[bytes, Handler]] = {
            b"/": {b"GET": dashboard.index},
            DASHBOARD: {b"GET": dashboard.file},
            b"/v1": {b"GET": dashboard.listing},
            b"/v1/bounds": {b"GET": history.bounds},
            b"/v1/openapi.json": {b"GET": openapi},
            b"/healthz": {b"GET": status.healthz},
            b"/readyz": {b"GET": status.readyz},
            b"/v1/status": {b"GET": status.status},
            b"/v1/listeners": {b"GET": status.listeners},
            b"/v1/store": {b"GET": status.store},
            b"/v1/peers": {b"GET": status.peers},
            b"/v1/refusals": {b"GET": status.refusals},
            b"/v1/audit": {b"GET": status.audit},
            b"/v1/slow": {b"GET": status.slow},
            b"/v1/subscriptions": {b"GET": status.subscriptions},
            b"/v1/sessions": {b"GET": sessions.list},
            SESSIONS: {b"GET": sessions.one, b"DELETE": sessions.disconnect},
            b"/v1/topics": {b"GET": topics.list},
            KEY: {b"POST": topics.rotate},
            b"/v1/history": {b"GET": history.get, b"POST": history.post},
            b"/v1/readers": {b"GET": positions.list},
            PREFIX: {b"PUT": positions.put, b"DELETE": positions.delete},
            LEASES: {b"PUT": leases.put, b"DELETE": leases.delete},
            TOPICS: {
                b"GET": topics.one,
                b"PUT": topics.create,
                b"DELETE": deletions.delete_topic,
            },
            MESSAGES: {b"GET": reading.get, b"POST": publishing.post},
            IDENTITIES: {b"DELETE": deletions.delete_identity},
            b"/v1/ws": {b"GET": sockets.upgrade},
            b"/metrics": {b"GET": MetricsPage(listener, run_in_thread).get},
            b"/v1/limits": {b"GET": staging.limits},
            b"/v1/stage": {b"POST": staging.stage},
            b"/v1/commit": {b"POST": staging.commit},
            b"/v1/abort": {b"POST": staging.abort},
            b"/v1/configuration": {b"GET": operations.configuration},
            b"/v1/drain": {b"POST": operations.drain},
        }
        listener.when_open(self._restore)

    def _restore(self) -> None:
        self._positions.restore()
        self._staging.restore()
        if not self.listener.tokens.ring.has_issuers and not self.listener.has_access_table:
            log.info("http: without a secret, clients of this machine may administer the broker")

    def acceptableProtocols(self) -> list[bytes]:
        """See IProtocolNegotiationFactory: HTTP/1.1 for clients that offer HTTP/2 as well."""
        return [b"http/1.1"]

    def buildProtocol(self, addr: IAddress | None) -> Channel:
        """See IProtocolFactory."""
        channel = Channel(self)
        channel.factory = self
        return channel

    def log(self, request: ApiRequest) -> None:
        """Called by twisted.web after each request; there is no access log."""

    def body_limit(self, method: bytes, target: bytes) -> tuple[int, Shares]:
        """See ``ApiServer``."""
        path = target.partition(b"?")[0]
        if method == b"POST" and path == b"/v1/stage":
            return self.listener.settings["max-batch"], self.staged_shares
        if method == b"POST" and _is_messages(path):
            return self.listener.settings["max-message"], self.body_shares
        # A client whose share is full of parts can still commit or abort them.
        return _MAX_BODY, self.body_shares

    async def handle(self, request: ApiRequest) -> None:
        """See ApiServer."""
        try:
            _check_headers(request)
            if not self._check_origin(request):
                self._check_identity(request)
                await self._handler(request)(request)
        except ApiError as error:
            self._fail(request, error)
        except Refused as refused:
            self._fail(request, ApiError.from_refusal(refused))
        except Exception:
            log.failure("http: a request failed", connection=request.channel.log_fields())
            message = "internal error; the broker's log has details"
            self._fail(request, ApiError(INTERNAL, "internal", message))

    def _check_identity(self, request: ApiRequest) -> None:
        """Raise AuthenticationRequired for a request of nobody, where that is not served.

        A WebSocket has its token in its first message. A token is checked when it is used.
        """
        path = request.path
        is_open = path == b"/v1/ws" or not path.startswith((b"/v1/", b"/metrics"))
        if not is_open and not request.requestHeaders.hasHeader("authorization"):
            self.listener.check_identity(request.channel.identity)

    def _check_origin(self, request: ApiRequest) -> bool:
        """See ``RequestOrigin.check``."""
        if self._origin.settings is not self.listener.settings:
            self._origin = RequestOrigin(self.listener.settings)
        return self._origin.check(request)

    def _handler(self, request: ApiRequest) -> Handler:
        methods = self._routes.get(_route_of(request.path))
        if methods is None:
            raise ApiError(NOT_FOUND, "not-found", "no such endpoint; GET /v1 lists them")
        method = b"GET" if request.method == b"HEAD" else request.method
        handler = methods.get(method)
        if handler is None:
            allowed = ", ".join(_allowed(methods))
            if method == b"OPTIONS":
                return partial(_options, allowed=allowed)
            raise ApiError.of_method(allowed)
        return handler

    def _fail(self, request: ApiRequest, error: ApiError) -> None:
        request.count_refusal(error)
        request.answer(error.status, error.body(), PROBLEM, error.headers())


def _is_messages(path: bytes) -> bool:
    """Return whether this is the path of a topic's messages."""
    return path.startswith(TOPICS) and path[len(TOPICS) :].endswith(MESSAGES)


def _route_of(path: bytes) -> bytes:
    """Return what the endpoints of this path are listed under."""
    if _is_messages(path):
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


def _check_headers(request: ApiRequest) -> None:
    """Raise ApiError for headers that are not UTF-8, as which Twisted decodes them."""
    for name, values in request.requestHeaders.getAllRawHeaders():
        for value in values:
            try:
                value.decode()
            except UnicodeDecodeError:
                shown = name.decode(errors="replace")
                message = f"the header {shown} is not UTF-8"
                raise ApiError(BAD_REQUEST, "invalid-request", message) from None


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    workers: list[Worker] = []
    # Threads do not survive the fork of a process that goes to the background.
    listener.when_open(lambda: workers.append(Worker("admin", _THREADS, listener.clock)))
    return AdminFactory(listener, lambda call: workers[0].run(call))
