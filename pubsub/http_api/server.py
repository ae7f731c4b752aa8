"""The HTTP API: its settings, and the factory of its listener. ``routes.py`` has its endpoints."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.application.service import Service
from twisted.internet.interfaces import IProtocolFactory, IProtocolNegotiationFactory
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from zope.interface import implementer

from pubsub.errors import Refused
from pubsub.http_api.connections.http_channel import Channel
from pubsub.http_api.publishing.message_publishing import PROTOCOL
from pubsub.http_api.reading.history_response import RunInThread
from pubsub.http_api.requests.api_error import BAD_REQUEST, PROBLEM, Absent, ApiError
from pubsub.http_api.requests.api_request import ApiRequest
from pubsub.http_api.requests.forwarded_requests import proved_identity
from pubsub.http_api.requests.operator_places import OperatorPlaces
from pubsub.http_api.requests.request_origin import SETTINGS as ORIGIN_SETTINGS
from pubsub.http_api.requests.request_origin import RequestOrigin
from pubsub.http_api.requests.request_target import origin_form
from pubsub.http_api.requests.request_turns import RequestTurns
from pubsub.http_api.requests.shares import Shares
from pubsub.http_api.routes import Routes, is_messages
from pubsub.kept_modules import keep_modules
from pubsub.settings import SECONDS, SIZE, Setting, integer
from pubsub.store.worker import Worker
from pubsub.wire.foreign_protocols import http_problem
from pubsub.wire.handshake_reasons import PLAINTEXT

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.listeners.listener import Listener

log = Logger()
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "max-streams",
        integer(1, 10_000),
        32,
        "streams of the history at a time; a client may read as many as it leaves free",
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
# Metrics, health checks and the dashboard are needed most when the memory, or the file descriptors,
# are used up.
_SPARED_CONNECTIONS = 16
_THREADS = 2
LATE_MODULES = (
    "pubsub.http_api.metrics.backplane_families",
    "pubsub.http_api.metrics.metric_families",
    "pubsub.http_api.metrics.metrics_exposition",
    "pubsub.store.reading.arrow",
    "pubsub.store.reading.arrow_values",
)
"""Those that need pyarrow and prometheus_client, which take a second to import together."""


@implementer(IProtocolNegotiationFactory)
class HttpApiFactory(Factory):
    """Builds the connections of the API's listener."""

    noisy = False

    def __init__(self, listener: Listener, run_in_thread: RunInThread) -> None:
        self.listener = listener
        keep_modules(LATE_MODULES)
        listener.event_protocol = PROTOCOL
        listener.quota.spared = _SPARED_CONNECTIONS
        self.staged_shares = Shares(lambda: listener.settings["max-staged"])
        self.body_shares = Shares(lambda: _MAX_BODIES)
        self.request_turns = RequestTurns(listener)
        self._origin = RequestOrigin(listener.settings)
        self._routes = Routes(listener, run_in_thread)
        self.operator_places = OperatorPlaces(listener, self._routes.is_for_operators)
        listener.when_open(self._restore)

    def _restore(self) -> None:
        self._routes.restore()
        # Where no file can be opened later, the search would report that there is no directory.
        with suppress(OSError):
            tempfile.gettempdir()
        if not self.listener.tokens.ring.has_issuers and not self.listener.has_access_table:
            log.info("http: without a secret, clients of this machine may administer the broker")

    def acceptableProtocols(self) -> list[bytes]:
        """See IProtocolNegotiationFactory: HTTP/1.1 for clients that offer HTTP/2 as well."""
        return [b"http/1.1"]

    def answer_without_tls(self, data: bytes) -> bytes:
        """See ``TlsFactory``: requests of HTTP are answered in HTTP, as browsers show that."""
        if http_problem(data) is not None:
            return b""
        return ApiError(BAD_REQUEST, PLAINTEXT, "this port speaks TLS; use https:").response()

    def buildProtocol(self, addr: IAddress | None) -> Channel:
        """See IProtocolFactory."""
        channel = Channel(self)
        channel.factory = self
        return channel

    def log(self, request: ApiRequest) -> None:
        """Called by twisted.web after each request; there is no access log."""

    def body_limit(self, method: bytes, target: bytes) -> tuple[int, Shares]:
        """See ``ApiServer``."""
        path = origin_form(target)[0].partition(b"?")[0]
        if method == b"POST" and path == b"/v1/stage":
            return self.listener.settings["max-batch"], self.staged_shares
        if method == b"POST" and is_messages(path):
            return self.listener.settings["max-message"], self.body_shares
        # A client whose share is full of parts can still commit or abort them.
        return _MAX_BODY, self.body_shares

    async def handle(self, request: ApiRequest) -> None:
        """See ApiServer."""
        try:
            _check_headers(request)
            if not self._check_origin(request):
                self._check_identity(request)
                await self._routes.handler(request)(request)
        except ApiError as error:
            self._fail(request, error)
        except Refused as refused:
            self._fail(request, ApiError.from_refusal(refused))
        except Exception:
            log.failure("http: a request failed", connection=request.channel.log_fields())
            self._fail(request, ApiError.of_defect())

    def _check_identity(self, request: ApiRequest) -> None:
        """Raise AuthenticationRequired for an anonymous request, if those are not served.

        A WebSocket has its token in its first message. A token is checked when it is used.
        """
        path = request.path
        is_open = path == b"/v1/ws" or not path.startswith((b"/v1/", b"/metrics"))
        if not is_open and not request.requestHeaders.hasHeader("authorization"):
            self.listener.check_identity(proved_identity(request))

    def _check_origin(self, request: ApiRequest) -> bool:
        """See ``RequestOrigin.check``."""
        if self._origin.settings is not self.listener.settings:
            self._origin = RequestOrigin(self.listener.settings)
        return self._origin.check(request)

    def _fail(self, request: ApiRequest, error: ApiError) -> None:
        if not isinstance(error, Absent):
            request.count_refusal(error)
        request.answer(error.status, error.body(), PROBLEM, error.headers())


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


class ApiThreads(Service):
    """Ends the threads of ``worker`` with the broker; requests that are being answered need them.

    They start when they are needed, as no thread survives the fork of a process that goes to the
    background.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def stopService(self) -> None:
        """See IService; connections are drained after that."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._worker.leave()


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    worker = Worker("admin", _THREADS, listener.clock)
    ApiThreads(worker).setServiceParent(listener.services)  # type: ignore[no-untyped-call]
    return HttpApiFactory(listener, worker.run)
