"""HTTP connections: twisted.web's channel with limits in bytes and in time.

twisted.web limits lines and headers (16 KiB together, 500 headers). Bodies are limited here while
they arrive, and a request must arrive at a minimum speed. Each connection is a client of the
broker: it is counted, swept and drained.

A connection causes events only when it publishes or is refused. A client that only reads may open
a connection for each range, as Spark's tasks do. If that caused events, reading the events would
produce more of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IDelayedCall, ISSLTransport, ITCPTransport
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import RESPONSES, HTTPChannel, Request
from twisted.web.iweb import INonQueuedRequestFactory
from zope.interface import provider

from pubsub.admin.api_error import TIMEOUT, TOO_LARGE, UNAVAILABLE, ApiError
from pubsub.admin.request_body import Body, ByteBudget
from pubsub.errors import Refused
from pubsub.wire.linger import LINGER

if TYPE_CHECKING:
    from pubsub.broker.events import ConnectionEvents
    from pubsub.broker.listener import Listener

JSON = "application/json"
# A request may take this many seconds to arrive, and one more for each _ARRIVAL_BYTES of it.
_ARRIVAL_SECONDS = 20.0
_ARRIVAL_BYTES = 64 * 1024
# Seconds that a connection without a request stays open.
_KEEP_ALIVE = 60.0
# The reason of a disconnect that the client caused.
_LEFT = "left"


class ApiServer(Protocol):
    """What connections need of the server they belong to."""

    listener: Listener
    body_budget: ByteBudget

    def body_limit(self, method: bytes, target: bytes) -> int:
        """Return the largest body, in bytes, that such a request may have."""

    async def handle(self, request: ApiRequest) -> None:
        """Answer ``request``, which has arrived completely."""


@provider(INonQueuedRequestFactory)
class ApiRequest(Request):
    """One request and its response."""

    channel: Channel
    client_left = False
    """True if the client disconnected before the response was complete."""
    _body_limit = 0

    def __init__(self, channel: Channel) -> None:
        # The endpoint decides how the body is parsed, not the Content-Type header.
        super().__init__(channel, parsePOSTFormSubmission=False)
        self._listener = channel.server.listener

    def gotLength(self, length: int | None) -> None:
        """The headers are complete: refuse a body that is too large."""
        self.content = self.body = Body(self.channel.server.body_budget)
        self._body_limit = self.channel.body_limit()
        if length is not None and length > self._body_limit:
            self._refuse_body()

    def handleContentChunk(self, data: bytes) -> None:
        """Append a piece of the body, within its limit."""
        if self.channel.refused:
            return
        if self.body.nbytes + len(data) > self._body_limit:
            self._refuse_body()
            return
        try:
            self.body.add(data)
        except ApiError as error:
            self.channel.refuse(error)

    def _refuse_body(self) -> None:
        message = f"the request body is larger than {self._body_limit} bytes"
        self.channel.refuse(ApiError(TOO_LARGE, "too-large", message))

    def process(self) -> None:
        """Handle the request, which has arrived completely."""
        if not self.channel.refused:
            self.notifyFinish().addErrback(self._lost)
            ensureDeferred(self.channel.server.handle(self))

    def _lost(self, failure: Failure) -> None:
        self.client_left = True

    def count_refusal(self, error: ApiError) -> None:
        """Count a refusal of this request."""
        if self.client_left:
            self._listener.refuse(error.code, self.label, topic=error.topic)
        else:
            self.channel.count_refusal(error.code, error.topic)

    def count_published(self, messages: int, nbytes: int) -> None:
        """Count published messages; staged messages are not published yet."""
        if not self.client_left:
            self.channel.count_published(messages, nbytes)

    def keep_body(self) -> Body:
        """Return the body, which the caller must close; otherwise it ends with the request."""
        body, self.content = self.body, None
        return body

    @property
    def address(self) -> str:
        """The client's address without the port."""
        return _host(self.client)

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""
        return _label(self.client)

    def head(self, status: int, headers: dict[str, str], kind: str) -> None:
        """Set the status and the headers of the response."""
        self.setResponseCode(status)
        for name, value in {"Content-Type": kind, "Cache-Control": "no-store", **headers}.items():
            self.responseHeaders.setRawHeaders(name, [value])

    def answer(
        self, status: int, body: bytes, kind: str = JSON, headers: dict[str, str] | None = None
    ) -> None:
        """Send a whole response, unless the client has left."""
        if self.client_left:
            return
        length = {} if status == 204 else {"Content-Length": str(len(body))}
        self.head(status, {**(headers or {}), **length}, kind)
        self.write(body)
        self.finish()


class Channel(HTTPChannel):
    """One connection; also a ``Client`` of the broker."""

    requestFactory = ApiRequest  # type: ignore[assignment]
    timeOut = None
    refused = False
    cut: Any = None
    """Called if the broker stops while a stream is being sent: the stream is cut."""
    _admitted = False
    _busy = False
    _events: ConnectionEvents | None = None
    _end_reason = _LEFT
    _lingering: IDelayedCall | None = None

    def __init__(self, server: ApiServer) -> None:
        super().__init__()
        self.server = server
        self._listener = server.listener
        self._since = self._listener.clock.seconds()
        self._arriving = False
        self._arrived = 0
        self._messages = self._nbytes = 0

    # The connection

    def connectionMade(self) -> None:
        """Count the connection, or refuse it."""
        super().connectionMade()
        try:
            self._listener.admit(self._host)
        except Refused as refused:
            self.refuse(ApiError(UNAVAILABLE, refused.reason, str(refused)))
            return
        self._admitted = True
        self._listener.clients.add(self)

    @property
    def _host(self) -> str:
        return _host(self.getPeer())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Remove the connection from the counts."""
        for request in self.requests:
            # A request that was never handled still has its body.
            if request.content is not None:
                request.content.close()
        super().connectionLost(reason)
        if self._lingering is not None and self._lingering.active():
            self._lingering.cancel()
        if self._admitted:
            self._admitted = False
            if self._events is not None:
                self._events.end(self._label, self._end_reason, self._messages, self._nbytes)
            self._listener.leave(self._host)
            self._listener.clients.discard(self)

    @property
    def _label(self) -> str:
        return _label(self.getPeer())

    def _report_connect(self) -> ConnectionEvents | None:
        """Report the connection, unless that has been done."""
        if self._events is None and self._admitted:
            self._events = self._listener.connection_events(self._label)
        return self._events

    def count_refusal(self, reason: str, topic: str | None = None) -> None:
        """Count a request that is answered with an error, or a stream that is cut."""
        self._listener.refuse(
            reason, self._label, topic=topic, connection_events=self._report_connect()
        )

    def count_published(self, messages: int, nbytes: int) -> None:
        """Count published messages and their payload bytes."""
        self._report_connect()
        self._messages += messages
        self._nbytes += nbytes

    def refuse(self, error: ApiError) -> None:
        """Refuse a request that has not arrived completely, and close."""
        if self.refused:
            return
        self.refused = True
        self.count_refusal(error.code)
        self._end_reason = error.code
        body = error.body()
        headers = {**error.headers(), "Content-Length": str(len(body)), "Content-Type": JSON}
        lines = [b"HTTP/1.1 %d %s" % (error.status, RESPONSES.get(error.status, b""))]
        lines += [f"{name}: {value}".encode() for name, value in headers.items()]
        self.write(b"\r\n".join([*lines, b"Connection: close", b"", body]))
        transport = cast(Any, self.transport)
        if ITCPTransport.providedBy(transport) and not ISSLTransport.providedBy(transport):
            # Closing with unread input would send a reset, which can overtake the response.
            transport.loseWriteConnection()
            self._lingering = self._listener.clock.callLater(LINGER, transport.abortConnection)
        else:
            self.loseConnection()

    # Requests

    def dataReceived(self, data: bytes) -> None:
        """See IProtocol."""
        if self.refused:
            return
        if not self._arriving and not self._busy:
            self._arriving = True
            self._since = self._listener.clock.seconds()
            self._arrived = 0
        self._arrived += len(data)
        super().dataReceived(data)

    def rawDataReceived(self, data: bytes) -> None:
        """See LineReceiver."""
        if not self.refused:
            super().rawDataReceived(data)

    def _send100Continue(self) -> None:
        if not self.refused:
            super()._send100Continue()

    def body_limit(self) -> int:
        """Return the largest body, in bytes, that the current request may have."""
        return self.server.body_limit(self._command, self._path)

    def allContentReceived(self) -> None:
        """The request has arrived completely."""
        self._arriving = False
        self._busy = True
        super().allContentReceived()

    def requestDone(self, request: Request) -> None:
        """The response has been sent."""
        self._busy = False
        self._since = self._listener.clock.seconds()
        self.cut = None
        super().requestDone(request)

    # As a client of the broker

    def sweep(self, now: float) -> None:
        """See ``Client``: close idle connections, refuse requests that arrive too slowly."""
        if self._busy or self.refused:
            return
        if self._arriving:
            if now - self._since > _ARRIVAL_SECONDS + self._arrived / _ARRIVAL_BYTES:
                self.refuse(ApiError(TIMEOUT, "timeout", "the request took too long to arrive"))
        elif now - self._since > (self._listener.idle_timeout or _KEEP_ALIVE):
            self._end_reason = "idle"
            self.loseConnection()

    def drain(self) -> None:
        """See ``Client``: the current request is answered, but a stream is cut."""
        self._end_reason = "stopped"
        if not self._busy:
            self.loseConnection()
            return
        self.persistent = 0
        if self.cut is not None:
            self.cut("the broker stops")

    def abort(self, reason: str) -> None:
        """See ``Client``."""
        if self._end_reason == _LEFT:
            self._end_reason = reason
        if self.transport is not None:
            cast(Any, self.transport).abortConnection()


def _host(peer: object) -> str:
    return getattr(peer, "host", "unix")


def _label(peer: object) -> str:
    if isinstance(peer, IPv4Address | IPv6Address):
        return f"{peer.host}:{peer.port}"
    return "unix"
