"""The HTTP API's server: its settings, and which request goes where."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from pubsub.admin.api_error import FORBIDDEN, FULL, INTERNAL, NOT_ALLOWED, NOT_FOUND, ApiError
from pubsub.admin.history_handler import History
from pubsub.admin.http_channel import ApiRequest, Channel
from pubsub.admin.reader_positions import PREFIX, Positions
from pubsub.admin.staging import PROTOCOL, Staging
from pubsub.errors import Refused
from pubsub.settings import SECONDS, SIZE, Setting, integer
from pubsub.store.threads import Worker

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.listener import Listener

log = Logger()
_Result = TypeVar("_Result")
Run = Callable[[Callable[[], Any]], "Deferred[Any]"]
"""Runs a call where it holds up nobody."""

SETTINGS: tuple[Setting, ...] = (
    Setting("max-streams", integer(1, 10_000), 16, "histories that are read at the same time"),
    Setting("max-readers", integer(0, 10**6), 1000, "readers whose positions are kept"),
    # Subscribers get all of it at once: far below what they may be behind by default.
    Setting("max-batch", SIZE, "32M", "bytes that are committed together, and of a part of them"),
    Setting("max-staged", SIZE, "256M", "bytes that are staged for batches not committed yet"),
    Setting("stage-seconds", SECONDS, 600, "seconds after which what was staged is dropped"),
)
# Bytes of a body where no batch is sent.
_SMALL_BODY = 1024**2
_THREADS = 2

_INDEX = b"""pubsub: a broker's history over HTTP
GET  /v1/bounds              first and next offset; ?timestamp=MICROSECONDS
GET  /v1/topics              topics with messages; ?start=&stop=
GET  /v1/history?start=N     messages; &stop= &topic= &format=arrow|jsonl &headers=1
POST /v1/history             the same, asked for in JSON
GET  /v1/readers             positions of readers
PUT  /v1/readers/NAME        {"offset": N}
POST /v1/stage?query=&batch= an Arrow stream: messages to publish
POST /v1/commit              {"query": Q, "batch": B, "parts": [...]}
POST /v1/abort               {"query": Q, "batch": B}
"""


class Budget:
    """Bytes of bodies that arrive or are staged, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, nbytes: int) -> None:
        """Take so many; raises ApiError where there are not as many."""
        if self.used + nbytes > self.limit:
            message = f"{self.used} of {self.limit} bytes are staged"
            raise ApiError(FULL, "staged", message)
        self.used += nbytes

    def free(self, nbytes: int) -> None:
        """Give so many back."""
        self.used -= nbytes


class AdminFactory(Factory):
    """Builds the connections of the API's listener. ``run`` runs calls in a thread."""

    noisy = False

    def __init__(self, listener: Listener, run: Run) -> None:
        self.listener = listener
        listener.called = PROTOCOL
        self.run = run
        self.spooled = Budget(listener.settings["max-staged"])
        self.positions = Positions(self)
        self.staging = Staging(self)
        history, positions, staging = History(self), self.positions, self.staging
        self._routes: dict[bytes, dict[bytes, Callable[[ApiRequest], Awaitable[None]]]] = {
            b"/": {b"GET": _index},
            b"/v1/bounds": {b"GET": history.bounds},
            b"/v1/topics": {b"GET": history.topics},
            b"/v1/history": {b"GET": history.get, b"POST": history.post},
            b"/v1/readers": {b"GET": positions.list},
            PREFIX: {b"PUT": positions.put, b"DELETE": positions.delete},
            b"/v1/stage": {b"POST": staging.stage},
            b"/v1/commit": {b"POST": staging.commit},
            b"/v1/abort": {b"POST": staging.abort},
        }
        listener.broker.when_open(self._restore)

    def _restore(self) -> None:
        self.positions.restore()
        self.staging.restore()

    def buildProtocol(self, addr: IAddress | None) -> Channel:
        """See IProtocolFactory."""
        channel = Channel(self)
        channel.factory = self
        return channel

    def log(self, request: ApiRequest) -> None:
        """Asked for by twisted.web after each request; the counters know what matters."""

    def body_limit(self, method: bytes, target: bytes) -> int:
        """Bytes that the body of such a request may have."""
        if method == b"POST" and target.partition(b"?")[0] == b"/v1/stage":
            limit: int = self.listener.settings["max-batch"]
            return limit
        return _SMALL_BODY

    def stored(self) -> Deferred[bool]:
        """Fires when all that was given to the store so far is on disk, or cannot be."""
        done: Deferred[bool] = Deferred()
        self.listener.broker.store.when_stored(done.callback)
        return done

    async def handle(self, request: ApiRequest) -> None:
        """Answer a request."""
        try:
            await self._handler(request)(request)
        except ApiError as error:
            self._fail(request, error)
        except Refused as refused:
            self._fail(request, ApiError.of(refused))
        except Exception:
            log.failure("http: a request")
            self._fail(request, ApiError(INTERNAL, "internal", "see the broker's log"))

    def _handler(self, request: ApiRequest) -> Callable[[ApiRequest], Awaitable[None]]:
        origin, host = request.getHeader("origin"), request.getHeader("host")
        if origin is not None and origin.partition("://")[2] != host:
            # Any page that somebody looks at may make a browser send this.
            raise ApiError(FORBIDDEN, "origin", f"a page of {origin} asks for it")
        path = PREFIX if request.path.startswith(PREFIX) else request.path
        methods = self._routes.get(path)
        if methods is None:
            raise ApiError(NOT_FOUND, "not-found", "there is no such endpoint; see /")
        handler = methods.get(request.method)
        if handler is None:
            allowed = b", ".join(methods).decode()
            raise ApiError(NOT_ALLOWED, "method", f"expected {allowed}")
        return handler

    def _fail(self, request: ApiRequest, error: ApiError) -> None:
        request.count_refusal(error)
        request.answer(error.status, error.body(), headers=error.headers())


async def _index(request: ApiRequest) -> None:
    request.answer(200, _INDEX, "text/plain; charset=utf-8")


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    broker = listener.broker
    workers: list[Worker] = []
    # Threads do not live through the fork of a process that goes to the background.
    broker.when_open(lambda: workers.append(Worker("admin", _THREADS, broker.clock)))
    return AdminFactory(listener, lambda call: workers[0].run(call))
