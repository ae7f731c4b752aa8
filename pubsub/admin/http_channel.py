"""HTTP connections: twisted.web's channel with limits in bytes and in time.

twisted.web limits lines and headers (16 KiB together, 500 headers). Bodies are limited here while
they arrive, and a request must arrive at a minimum speed. Each connection is a client of the
broker: it is counted, swept and drained, and leaves as every stream does (``departure.py``).

A connection causes events only when it publishes or is refused. A client that only reads may open
a connection for each range, as Spark's tasks do. If that caused events, reading the events would
produce more of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.failure import Failure
from twisted.web.http import Request
from zope.interface import implementer

from pubsub.admin.api_error import TIMEOUT, UNAVAILABLE, ApiError
from pubsub.admin.api_request import STOPPED, ApiRequest
from pubsub.admin.channel_figures import ChannelFigures
from pubsub.admin.leaving_channel import LeavingChannel
from pubsub.broker.connection_figures import Figures
from pubsub.errors import HandshakeTimeout, Refused
from pubsub.wire.connection_log import log_closed, log_opened
from pubsub.wire.life_cycle import Event
from pubsub.wire.peer_address import host_of
from pubsub.wire.read_buffer import arrival_seconds
from pubsub.wire.unsent_bytes import TransportCharge, unsent_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.admin.api_request import ApiServer, LongResponse
    from pubsub.admin.shares import Shares
    from pubsub.broker.events import ConnectionEvents
    from pubsub.broker.limits import RateLimiter
    from pubsub.broker.outbox import Outbox
    from pubsub.wire.direct_transport import StreamTransport

# Seconds that a connection without a request stays open.
_KEEP_ALIVE = 60.0
# The reason of a disconnect that the client caused.
_LEFT = "left"


@implementer(IHandshakeListener)
class Channel(LeavingChannel):
    """One connection; also a ``Client`` of the broker."""

    requestFactory = ApiRequest  # type: ignore[assignment]
    timeOut = None
    refused = False
    cut: Any = None
    """Called if the broker stops while a stream is being sent: the stream is cut."""
    long_response: LongResponse | None = None
    """The response that is being sent, if it has no end of its own."""
    upgraded = False
    """The connection does not speak HTTP any more, but what the long response does."""
    is_session = True
    output_full = False
    """The transport has more than it can send now."""
    _admitted_host: str | None = None
    # The bytes of a response in the transport, while it is full.
    _transport_charge: TransportCharge | None = None
    _limiters: tuple[RateLimiter, ...] | None = None
    _last_response: LongResponse | None = None
    _busy = False
    _events: ConnectionEvents | None = None
    _end_reason = _LEFT

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server.listener)
        self.server = server
        self._since = self.listener.clock.seconds()
        self._arriving = False
        self._arrived = 0
        self._figures = ChannelFigures()

    @property
    def leaving(self) -> bool:
        """True once the connection is on the way to its end."""
        return self._departure is not None

    @property
    def end_reason(self) -> str:
        """The reason for the end, as the client gets it."""
        return "half-closed" if self._end_reason == _LEFT else self._end_reason

    @property
    def stream(self) -> StreamTransport:
        """The transport, with its type."""
        return cast("StreamTransport", self.transport)

    @property
    def accepted_by(self) -> object:
        """See ``Client``."""
        return self.listener

    def limiters(self) -> tuple[RateLimiter, ...]:
        """Return the rate limits of what this connection publishes."""
        if self._limiters is None:
            self._limiters = self.listener.limiters()
        return self._limiters

    # The connection

    def connectionMade(self) -> None:
        """Count the connection, or refuse it."""
        super().connectionMade()
        host = host_of(self.getPeer())
        self.mark = next(self.listener.marks)
        try:
            self.listener.admit(host)
        except Refused as refused:
            self.refuse(ApiError(UNAVAILABLE, refused.reason, str(refused)))
            return
        self._admitted_host = host
        if self.listener.logs_connections:
            log_opened(self.listener, self)
        self.listener.clients.add(self)
        if isinstance(self.transport, ProtocolWrapper):
            self.listener.handshakes.begin(self)

    def handshakeCompleted(self) -> None:
        """See IHandshakeListener: that of TLS, or the header of a proxy."""
        self.listener.handshakes.done(self)

    def handshake_overdue(self) -> None:
        """See ``Shaking``."""
        self.count_refusal(HandshakeTimeout.reason)
        self.abort(HandshakeTimeout.reason)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Remove the connection from the counts."""
        for request in self.requests:
            # A request that was never handled still has its body.
            if request.content is not None:
                request.content.close()
        super().connectionLost(reason)
        host, self._admitted_host = self._admitted_host, None
        if host is not None:
            self.listener.leave(host)
            self.listener.clients.discard(self)

    def _report_connect(self) -> ConnectionEvents | None:
        """Report the connection, unless that has been done."""
        if self._events is None and self._admitted_host is not None:
            self._events = self.listener.connection_events(self.label, self.mark)
        return self._events

    def count_refusal(self, reason: str, topic: str | None = None) -> None:
        """Count a request that is answered with an error, or a stream that is cut."""
        self._report_connect()
        self.listener.refuse(reason, self.label, topic=topic, connection=self)

    def count_published(self, messages: int, nbytes: int) -> None:
        """Count published messages and their payload bytes."""
        self._report_connect()
        self._figures.published(messages, nbytes)

    def refuse(self, error: ApiError) -> None:
        """Refuse a request that has not arrived completely, and close."""
        if self.refused:
            return
        self.refused = True
        self.count_refusal(error.code)
        self._end_reason = error.code
        self.write(error.response())
        self.loseConnection()

    # As a session

    @property
    def peer(self) -> str:
        """See ``ListedSession``."""
        return self.label

    def outboxes(self) -> Iterable[Outbox]:
        """See ``ListedSession``."""
        return () if self.long_response is None else (self.long_response.outbox,)

    def figures(self) -> Figures:
        """See ``StreamClient``."""
        return self._figures.with_outboxes(self.outboxes(), self.leaving)

    # Requests

    def dataReceived(self, data: bytes) -> None:
        """See IProtocol."""
        if self._discards_input:
            return
        if self.upgraded and self.long_response is not None:
            self.long_response.data_received(data)
            return
        if not self._arriving and not self._busy:
            self._arriving = True
            self._since = self.listener.clock.seconds()
            self._arrived = 0
        self._arrived += len(data)
        super().dataReceived(data)

    def rawDataReceived(self, data: bytes) -> None:
        """See LineReceiver; after an upgrade, what has arrived with the request."""
        if self.upgraded and self.long_response is not None:
            self.long_response.data_received(data)
        else:
            super().rawDataReceived(data)

    def _send100Continue(self) -> None:
        if not self.refused:
            super()._send100Continue()

    def body_limit(self) -> tuple[int, Shares]:
        """See ``ApiServer``, for the current request."""
        return self.server.body_limit(self._command, self._path)

    def allContentReceived(self) -> None:
        """The request has arrived completely."""
        self._arriving = False
        self._busy = True
        super().allContentReceived()

    def requestDone(self, request: Request) -> None:
        """The response has been sent."""
        self._busy = False
        self._since = self.listener.clock.seconds()
        self.cut = None
        super().requestDone(request)

    def response_ended(self) -> None:
        """The long response has ended in order."""
        if self.long_response is not None:
            self._figures.ended(self.long_response.outbox)
        if self._departure is not None:
            # Some of it may not be taken.
            self._last_response = self.long_response
        self.long_response = None

    def upgrade_ended(self) -> None:
        """The long response has ended, and with it the connection."""
        self.loseConnection()
        self.response_ended()
        self._busy = False
        self._leave().settle()

    # The transport

    def pauseProducing(self) -> None:
        """The transport has more than it can send now."""
        self.output_full = True
        if self.long_response is None and self.cut is None:
            # An outbox counts what waits for it, and a stream is charged with all it may take.
            if self._transport_charge is None:
                charge = TransportCharge(self.evict, self.listener.memory)
                self._transport_charge = charge
            self._transport_charge.set(unsent_bytes(self.stream))
        super().pauseProducing()

    def resumeProducing(self) -> None:
        """The transport has sent all it had."""
        self.output_full = False
        self._uncharge_transport()
        super().resumeProducing()

    def _uncharge_transport(self) -> None:
        charge, self._transport_charge = self._transport_charge, None
        if charge is not None:
            charge.set(0)

    def readConnectionLost(self) -> None:
        """The client sends nothing more: it gets the responses to what it has sent."""
        super().readConnectionLost()
        if self.long_response is not None:
            self.long_response.input_ended()

    # As a client of the broker

    def sweep(self, now: float) -> None:
        """See ``Client``: close idle connections, refuse requests that arrive too slowly."""
        if self._departure is not None:
            return
        if self._busy:
            if self.long_response is not None:
                self.long_response.sweep(now)
            return
        if self._arriving:
            seconds = self.listener.frame_seconds
            if seconds and now - self._since > arrival_seconds(seconds, self._arrived):
                self.refuse(ApiError(TIMEOUT, "timeout", "the request took too long to arrive"))
        elif now - self._since > (self.listener.idle_timeout or _KEEP_ALIVE):
            self._end_reason = "idle"
            self.loseConnection()

    def drain(self) -> None:
        """See ``Client``: the current request is answered, but a stream is cut."""
        if self._departure is None and self._end_reason == _LEFT:
            self._end_reason = STOPPED
        self.persistent = 0
        self._leave().on(Event.DRAIN)
        if self.long_response is not None:
            self.long_response.drain(self.end_reason)
        elif self.cut is not None:
            self.cut("the broker stops" if self._end_reason == STOPPED else self.end_reason)

    def dismiss(self, reason: str) -> None:
        """See ``Client``: the current request is answered, but a stream is cut."""
        if self._departure is not None:
            self.abort(reason)
            return
        self._end_reason = reason
        self.drain()

    def abort(self, reason: str) -> None:
        """See ``Client``."""
        if self._end_reason == _LEFT:
            self._end_reason = reason
        super().abort(reason)

    def owes_answers(self) -> bool:
        """See ``Leaver``."""
        return self._busy

    def end(self) -> None:
        """See ``Leaver``."""
        super().end()
        self._uncharge_transport()
        self.listener.handshakes.done(self)
        response, self.long_response = self.long_response, None
        if response is not None:
            self._last_response = response
            response.end()
            self._figures.ended(response.outbox)
        if self.listener.logs_connections:
            log_closed(self.listener, self, self.label, self._end_reason)
        if self._events is not None:
            figures = self._figures
            self._events.end(self.label, self._end_reason, figures.messages_in, figures.bytes_in)
            self._events = None

    def discarded(self, nbytes: int) -> None:
        """See ``Leaver``: messages are counted, other responses are not."""
        response, self._last_response = self._last_response, None
        if response is not None:
            response.discarded(nbytes)
