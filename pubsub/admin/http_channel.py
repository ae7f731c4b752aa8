"""HTTP's wire: twisted.web's channel with bounds in bytes and in time.

Lines and headers are bounded by twisted.web (16 KiB together, 500 headers). Bodies are bounded
here while they arrive, and a request has to arrive with a certain speed. Each connection is one of
the broker's clients: counted in, swept, and told to leave.

Events tell of a connection once it publishes, or is refused something. What only reads may connect
for each range, as Spark's tasks do: were that an event, it would be something new to read, and
reading it the next event.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IDelayedCall, ISSLTransport, ITCPTransport
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import RESPONSES, HTTPChannel, Request
from twisted.web.iweb import INonQueuedRequestFactory
from zope.interface import provider

from pubsub.admin.api_error import FULL, TIMEOUT, TOO_LARGE, UNAVAILABLE, ApiError
from pubsub.errors import Refused
from pubsub.wire.linger import LINGER

if TYPE_CHECKING:
    from pubsub.admin.server import AdminFactory
    from pubsub.broker.events import ConnectionEvents

JSON = "application/json"
# Bytes of a body that are kept in memory; beyond that it goes to a temporary file.
_IN_MEMORY = 64 * 1024
# A request may take so many seconds to arrive, and one more for each so many bytes of it.
_ARRIVAL_SECONDS = 20.0
_ARRIVAL_BYTES = 64 * 1024
# Seconds a connection without a request is kept open.
_KEEP_ALIVE = 60.0
# Why a connection ended if nobody here ended it.
_LEFT = "left"


class Body(tempfile.SpooledTemporaryFile[bytes]):
    """A request's body. What it takes is accounted for until it is closed."""

    def __init__(self, server: AdminFactory) -> None:
        super().__init__(max_size=_IN_MEMORY)
        self._server = server
        self.nbytes = 0

    def add(self, data: bytes) -> None:
        """Take more; raises ApiError where there is no room."""
        self._server.spooled.take(len(data))
        self.nbytes += len(data)
        try:
            self.write(data)
        except OSError as error:
            raise ApiError(FULL, "staged", f"no room for it: {error.strerror}") from None

    def close(self) -> None:
        """Let go of it."""
        if not self.closed:
            self._server.spooled.free(self.nbytes)
        super().close()


@provider(INonQueuedRequestFactory)
class ApiRequest(Request):
    """One request, and its answer."""

    channel: Channel
    gone = False
    """Has the client left before it was answered?"""
    _limit = 0

    def __init__(self, channel: Channel) -> None:
        # A body is read where its endpoint knows what it is, whatever it is said to be.
        super().__init__(channel, parsePOSTFormSubmission=False)
        self._listener = channel.server.listener

    def gotLength(self, length: int | None) -> None:
        """The headers are there: is the body one to take?"""
        self.content = self.body = Body(self.channel.server)
        self._limit = self.channel.body_limit()
        if length is not None and length > self._limit:
            self._too_large()

    def handleContentChunk(self, data: bytes) -> None:
        """Some of the body has come."""
        if self.channel.refused:
            return
        if self.body.nbytes + len(data) > self._limit:
            self._too_large()
            return
        try:
            self.body.add(data)
        except ApiError as error:
            self.channel.refuse(error)

    def _too_large(self) -> None:
        self.channel.refuse(
            ApiError(TOO_LARGE, "too-large", f"a body here has {self._limit} bytes at the most")
        )

    def process(self) -> None:
        """All of it is there."""
        if not self.channel.refused:
            self.notifyFinish().addErrback(self._lost)
            ensureDeferred(self.channel.server.handle(self))

    def _lost(self, failure: Failure) -> None:
        self.gone = True

    def count_refusal(self, error: ApiError) -> None:
        """Count that it is answered with this error."""
        if self.gone:
            self._listener.refuse(error.word, self.label, topic=error.topic)
        else:
            self.channel.count_refusal(error.word, error.topic)

    def count_published(self, messages: int, nbytes: int) -> None:
        """Count what it has published; what is only staged is none yet."""
        if not self.gone:
            self.channel.count_published(messages, nbytes)

    def keep_body(self) -> Body:
        """The body, to be closed by the caller; else it ends with the request."""
        body, self.content = self.body, None
        return body

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""
        return _label(self.client)

    def head(self, status: int, headers: dict[str, str], kind: str) -> None:
        """Say how the answer begins."""
        self.setResponseCode(status)
        for name, value in {"Content-Type": kind, "Cache-Control": "no-store", **headers}.items():
            self.responseHeaders.setRawHeaders(name, [value])

    def answer(
        self, status: int, body: bytes, kind: str = JSON, headers: dict[str, str] | None = None
    ) -> None:
        """Answer with all of it at once."""
        if self.gone:
            return
        length = {} if status == 204 else {"Content-Length": str(len(body))}
        self.head(status, {**(headers or {}), **length}, kind)
        self.write(body)
        self.finish()


class Channel(HTTPChannel):
    """One connection (see ``Client``)."""

    requestFactory = ApiRequest  # type: ignore[assignment]
    timeOut = None
    refused = False
    cut: Any = None
    """Called if the broker stops while the answer is a stream: it does not wait for its end."""
    _admitted = False
    _busy = False
    _events: ConnectionEvents | None = None
    _why = _LEFT
    _lingering: IDelayedCall | None = None

    def __init__(self, server: AdminFactory) -> None:
        super().__init__()
        self.server = server
        self._broker = server.listener.broker
        self._since = self._broker.seconds()
        self._arriving = False
        self._arrived = 0
        self._messages = self._nbytes = 0

    # The connection

    def connectionMade(self) -> None:
        """Count it in, or turn it away."""
        super().connectionMade()
        try:
            self.server.listener.admit(self._host)
        except Refused as refused:
            self.refuse(ApiError(UNAVAILABLE, refused.reason, str(refused)))
            return
        self._admitted = True
        self._broker.arrived(self)

    @property
    def _host(self) -> str:
        return getattr(self.getPeer(), "host", "unix")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Count it out."""
        for request in self.requests:
            # Not all that came need have become a request that is answered.
            if request.content is not None:
                request.content.close()
        super().connectionLost(reason)
        if self._lingering is not None and self._lingering.active():
            self._lingering.cancel()
        if self._admitted:
            self._admitted = False
            if self._events is not None:
                self._events.end(self._label, self._why, self._messages, self._nbytes)
            self.server.listener.leave(self._host)
            self._broker.left(self)

    @property
    def _label(self) -> str:
        return _label(self.getPeer())

    def _tell(self) -> ConnectionEvents | None:
        """Tell of the connection if that has not been done."""
        if self._events is None and self._admitted:
            self._events = self.server.listener.connection_events(self._label)
        return self._events

    def count_refusal(self, reason: str, topic: str | None = None) -> None:
        """Count a request that is answered with an error, or a stream that is cut."""
        self.server.listener.refuse(
            reason, self._label, topic=topic, connection_events=self._tell()
        )

    def count_published(self, messages: int, nbytes: int) -> None:
        """Count messages, and bytes of them, that were published."""
        self._tell()
        self._messages += messages
        self._nbytes += nbytes

    def refuse(self, error: ApiError) -> None:
        """Answer a request that is not to arrive as a whole, and close."""
        if self.refused:
            return
        self.refused = True
        self.count_refusal(error.word)
        self._why = error.word
        body = error.body()
        headers = {**error.headers(), "Content-Length": str(len(body)), "Content-Type": JSON}
        lines = [b"HTTP/1.1 %d %s" % (error.status, RESPONSES.get(error.status, b""))]
        lines += [f"{name}: {value}".encode() for name, value in headers.items()]
        self.write(b"\r\n".join([*lines, b"Connection: close", b"", body]))
        transport = cast(Any, self.transport)
        if ITCPTransport.providedBy(transport) and not ISSLTransport.providedBy(transport):
            # Closed with input unread, the kernel would send a reset that can overtake the answer.
            transport.loseWriteConnection()
            self._lingering = self._broker.clock.callLater(LINGER, transport.abortConnection)
        else:
            self.loseConnection()

    # Requests

    def dataReceived(self, data: bytes) -> None:
        """See IProtocol."""
        if self.refused:
            return
        if not self._arriving and not self._busy:
            self._arriving = True
            self._since = self._broker.seconds()
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
        """Bytes that the body of the request under way may have."""
        return self.server.body_limit(self._command, self._path)

    def allContentReceived(self) -> None:
        """A request is there."""
        self._arriving = False
        self._busy = True
        super().allContentReceived()

    def requestDone(self, request: Request) -> None:
        """It has been answered."""
        self._busy = False
        self._since = self._broker.seconds()
        self.cut = None
        super().requestDone(request)

    # As a client of the broker

    def sweep(self, now: float) -> None:
        """See ``Client``: requests that take too long to arrive, and none at all."""
        if self._busy or self.refused:
            return
        if self._arriving:
            if now - self._since > _ARRIVAL_SECONDS + self._arrived / _ARRIVAL_BYTES:
                self.refuse(ApiError(TIMEOUT, "timeout", "the request took too long to arrive"))
        elif now - self._since > (self.server.listener.idle_timeout or _KEEP_ALIVE):
            self._why = "idle"
            self.loseConnection()

    def drain(self) -> None:
        """See ``Client``: what was asked for is answered, but for streams."""
        self._why = "stopped"
        if not self._busy:
            self.loseConnection()
            return
        self.persistent = 0
        if self.cut is not None:
            self.cut("the broker stops")

    def abort(self, reason: str) -> None:
        """See ``Client``."""
        if self._why == _LEFT:
            self._why = reason
        if self.transport is not None:
            cast(Any, self.transport).abortConnection()


def _label(peer: object) -> str:
    if isinstance(peer, IPv4Address | IPv6Address):
        return f"{peer.host}:{peer.port}"
    return "unix"
