"""Requests to the HTTP API: their bodies within limits, and their responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from twisted.internet.defer import ensureDeferred
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request
from twisted.web.iweb import INonQueuedRequestFactory
from zope.interface import provider

from pubsub.broker.clients.connection_marks import Marked
from pubsub.errors import RateLimited
from pubsub.http_api.requests.api_error import TOO_LARGE, VERSION, ApiError, phrase
from pubsub.http_api.requests.client_share import client_of
from pubsub.http_api.requests.request_body import Body
from pubsub.http_api.requests.request_target import origin_form
from pubsub.wire.peer_address import address_text, host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pubsub.broker.credentials.identity import Identity
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.rate_limits import RateLimiter
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.http_api.requests.operator_places import OperatorPlaces
    from pubsub.http_api.requests.request_turns import RequestTurns
    from pubsub.http_api.requests.shares import Shares
    from pubsub.wire.direct_transport import StreamTransport

JSON = "application/json"
"""The content type of most responses."""
# No page of another origin may use a response, as a script, an image or otherwise, unless CORS
# allows it to.
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class ApiServer(Protocol):
    """The server, as its connections use it."""

    listener: Listener
    request_turns: RequestTurns
    operator_places: OperatorPlaces

    def body_limit(self, method: bytes, target: bytes) -> tuple[int, Shares]:
        """Return the largest size of the body of such a request, and the account of its bytes."""

    async def handle(self, request: ApiRequest) -> None:
        """Answer ``request``, which has arrived completely."""


STOPPED = "stopped"
"""The reason for the end of a connection when the broker stops."""
TOKEN_EXPIRED = "token-expired"
"""The reason for the end of a response or a WebSocket with its token, which was accepted before:
not that of a refused attempt, for which fail2ban would block the address."""


class LongResponse(Protocol):
    """A response that ends only when the client or the broker ends it."""

    @property
    def outbox(self) -> Outbox:
        """The messages that wait for the client."""

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``."""

    def drain(self, reason: str) -> None:
        """See ``ConnectedClient``: end after the queued bytes, with the reason for the client."""

    def data_received(self, data: bytes) -> None:
        """The client has sent this after the request, if the response is an upgrade."""

    def input_ended(self) -> None:
        """The client has closed its half of the connection."""

    def end(self) -> None:
        """The connection ends: release the memory that is held for it."""

    def discarded(self, nbytes: int) -> None:
        """The client has not taken the last ``nbytes`` bytes; called after ``end``."""


class RequestChannel(Marked, Protocol):
    """The connection, as a request and its response use it."""

    server: ApiServer
    refused: bool
    """True if the request has been refused before it arrived completely."""
    output_full: bool
    """True while the transport has more than it can send."""
    cut: Callable[[str], None] | None
    """Called if the broker stops while a stream is being sent: the stream is cut."""
    long_response: LongResponse | None
    """The response that is being sent, if it has no end of its own."""

    upgraded: bool
    """True if the connection speaks the protocol of the long response instead of HTTP."""
    identity: Identity
    """The identity that the client has proved by its connection, or last to its WebSocket: that of
    a request is not kept, as the next one may have another token."""

    @property
    def leaving(self) -> bool:
        """True once the connection is on the way to its end."""

    @property
    def has_place(self) -> bool:
        """Whether the connection is admitted beyond the bounds, for a request of an operator."""

    @property
    def end_reason(self) -> str:
        """The reason for the end of the connection, once it is closing."""

    @property
    def stream(self) -> StreamTransport:
        """The transport."""

    def getPeer(self) -> object: ...

    def body_limit(self) -> tuple[int, Shares]:
        """See ``ApiServer``, for the current request."""

    def limiters(self) -> tuple[RateLimiter, ...]:
        """Return the rate limits for the messages that this connection publishes."""

    def refuse(self, error: ApiError) -> None:
        """Refuse a request that has not arrived completely, and close."""

    def report_connect(self) -> None:
        """Report the connection, unless that has been done."""

    def count_refusal(self, reason: str, topic: str | None = None) -> None:
        """Count a request that is answered with an error, or a stream that is cut."""

    def count_published(self, messages: int, nbytes: int) -> None:
        """Count published messages and their payload bytes."""

    def response_ended(self) -> None:
        """The long response has ended in order."""

    def upgrade_ended(self) -> None:
        """The long response has ended, and with it the connection."""

    def abort(self, reason: str) -> None:
        """Close at once."""


@provider(INonQueuedRequestFactory)
class ApiRequest(Request):
    """One request and its response."""

    channel: RequestChannel  # type: ignore[assignment]
    client_left = False
    """True if the client disconnected before the response was complete."""
    _body_limit = 0

    def __init__(self, channel: RequestChannel) -> None:
        # The endpoint decides how the body is parsed, not the Content-Type header.
        super().__init__(cast("HTTPChannel", channel), parsePOSTFormSubmission=False)
        self._listener = channel.server.listener

    def gotLength(self, length: int | None) -> None:
        """The headers are complete: refuse a body that is too large."""
        client = client_of(self.requestHeaders, self._listener, host_of(self.channel.getPeer()))
        self._body_limit, shares = self.channel.body_limit()
        self.content = self.body = Body(shares, client, self._listener.memory)
        if length is not None and length > self._body_limit:
            self._refuse_body()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """See ``Request``; also of targets in absolute form."""
        if self.channel.refused:
            # Also because the disk has not taken the body, which would be an error again.
            return
        path, host = origin_form(path)
        if host is not None:
            self.requestHeaders.setRawHeaders(b"host", [host])
        super().requestReceived(command, path, version)

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
        self.notifyFinish().addErrback(self._lost)
        ensureDeferred(self.channel.server.handle(self))

    def _lost(self, failure: Failure) -> None:
        self.client_left = True

    def require_chunks(self) -> None:
        """Raise ApiError if a response of unknown length cannot be distinguished from a cut one."""
        if self.clientproto != b"HTTP/1.1":
            message = "HTTP/1.1 is required: before it a stream that was cut looks complete"
            raise ApiError(VERSION, "version", message)

    def count_refusal(self, error: ApiError) -> None:
        """Count a refusal of this request."""
        if self.client_left:
            self._listener.refuse(
                error.code, self.label, topic=error.topic, connection=self.channel
            )
        else:
            self.channel.count_refusal(error.code, error.topic)

    def count_published(self, messages: int, nbytes: int) -> None:
        """Count published messages; staged messages are not published yet."""
        if not self.client_left:
            self.channel.count_published(messages, nbytes)

    def count_submitted(self, topics: Sequence[Topic], batch: Batch, refused: int) -> None:
        """Count published messages, and those that a rate limit has refused."""
        self.count_published(batch.count, batch.nbytes)
        if refused:
            self._listener.refuse(
                RateLimited.reason,
                self.label,
                refused,
                topic=topics[0].name,
                connection=self.channel,
            )

    def keep_body(self) -> Body:
        """Return the body, which the caller must close; otherwise it ends with the request."""
        body, self.content = self.body, None
        return body

    @property
    def address(self) -> str:
        """The client's address without the port."""
        return host_of(self.client)

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""
        return address_text(self.client)

    def log_fields(self) -> dict[str, str]:
        """See ``Marked``: those of the connection."""
        return self.channel.log_fields()

    def head(self, status: int, headers: dict[str, str], kind: str) -> None:
        """Set the status and the headers of the response."""
        self.setResponseCode(status, phrase(status))
        for name, value in {"Content-Type": kind, **_HEADERS, **headers}.items():
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
