"""HTTP connections: twisted.web's channel as a client of the broker, with limits in time.

Bodies are limited while they arrive, and a request must arrive at a minimum speed. Each connection
is counted, swept and drained, and leaves like any stream (``channel_departure.py``).
``bounded_channel.py`` has the limits for heads, and for requests that arrive together.

A connection causes events only when it publishes, is refused or is a WebSocket: a client that only
reads may open one for each range, as Spark's tasks do, and reading the events would produce more.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import Request
from zope.interface import implementer

from pubsub.broker.clients.connection_marks import describe
from pubsub.broker.credentials.identity import Identity
from pubsub.broker.figures.connection_figures import ConnectionFigures
from pubsub.errors import HandshakeTimeout, Refused
from pubsub.http_api.connections.bounded_channel import BoundedChannel
from pubsub.http_api.connections.channel_departure import ChannelDeparture
from pubsub.http_api.connections.channel_figures import ChannelFigures
from pubsub.http_api.requests.api_error import BAD_REQUEST, TIMEOUT, UNAVAILABLE, ApiError
from pubsub.http_api.requests.api_request import STOPPED, ApiRequest
from pubsub.http_api.requests.request_times import RequestTimes
from pubsub.wire.connection_admission import admit, locate, report_end, withdraw
from pubsub.wire.foreign_protocols import http_problem
from pubsub.wire.life_cycle import Event
from pubsub.wire.peer_address import address_text
from pubsub.wire.transport_identity import identity_of
from pubsub.wire.unsent_bytes import TransportCharge, unsent_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.figures.events import ConnectionEvents
    from pubsub.broker.publishing.rate_limits import RateLimiter
    from pubsub.http_api.requests.api_request import ApiServer, LongResponse
    from pubsub.http_api.requests.shares import Shares
    from pubsub.wire.direct_transport import StreamTransport

# The reason of a disconnect that the client caused.
_LEFT = "left"


@implementer(IHandshakeListener, IHalfCloseableProtocol)
class Channel(BoundedChannel):
    """One connection; also a ``ConnectedClient`` of the broker."""

    requestFactory = ApiRequest  # type: ignore[assignment]
    timeOut = None
    mark = 0  # See ``Marked``.
    has_handshake: ClassVar[bool] = False
    is_listed = True
    output_full = upgraded = False
    cut: Any = None
    long_response: LongResponse | None = None
    _admitted_host: str | None = None  # See ``admit``.
    _limiters: tuple[RateLimiter, ...] | None = None
    _last_response: LongResponse | None = None
    _events: ConnectionEvents | None = None
    _end_reason = _LEFT

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server.listener, server.request_turns, server.operator_places)
        self.server = server
        self.accepted_by = server.listener
        self._times = RequestTimes(self.listener.clock.seconds)
        self._figures = ChannelFigures()
        self._departure = ChannelDeparture(self, self._times)
        # The bytes of a response in the transport, while it is full.
        self._unsent = TransportCharge(self.evict, self.listener.memory)

    @property
    def label(self) -> str:
        """See ``ListedConnection``: the client's address, as it has no name."""
        return address_text(self.getPeer())

    peer = label

    def log_fields(self) -> dict[str, str]:
        """See ``Marked``."""
        known = vars(self).get("identity")
        return describe(self.mark, self.listener.event_protocol, self.label, known)

    @cached_property
    def identity(self) -> Identity:
        """See ``RequestChannel``."""
        return identity_of(self.transport, self.listener.settings["tls-identity"])

    @property
    def leaving(self) -> bool:
        """True once the connection is on the way to its end."""
        return self._departure.has_begun

    @property
    def end_reason(self) -> str:
        """The reason for the end, as the client gets it."""
        return "half-closed" if self._end_reason == _LEFT else self._end_reason

    @property
    def stream(self) -> StreamTransport:
        """The transport, with its type."""
        return cast("StreamTransport", self.transport)

    def limiters(self) -> tuple[RateLimiter, ...]:
        """Return the rate limits for the messages that this connection publishes."""
        if self._limiters is None:
            self._limiters = self.listener.limiters()
        return self._limiters

    # The connection

    def connectionMade(self) -> None:
        """Count the connection, or refuse it."""
        super().connectionMade()
        self.stream.bufferSize = self.next_read
        self._admitted_host = admit(self.listener, self, self._places.take(self))

    def not_admitted(self, refused: Refused) -> None:
        """See ``Admissible``."""
        self.refuse(ApiError.from_refusal(refused, UNAVAILABLE))

    def handshakeCompleted(self) -> None:
        """See IHandshakeListener: that of TLS, or the header of a proxy."""
        self._admitted_host = locate(self.listener, self, self._admitted_host)
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
        self._departure.on(Event.LOST)
        host, self._admitted_host = self._admitted_host, None
        withdraw(self.listener, self, host)

    def report_connect(self) -> None:
        """Report the connection, unless that has been done."""
        if self._events is None and self._admitted_host is not None:
            self._events = self.listener.connection_events(self.label, self.mark)

    def count_refusal(self, reason: str, topic: str | None = None) -> None:
        """Count a request that is answered with an error, or a stream that is cut."""
        self.report_connect()
        self.listener.refuse(reason, self.label, topic=topic, connection=self)

    def count_published(self, messages: int, nbytes: int) -> None:
        """Count published messages and their payload bytes."""
        self.report_connect()
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

    def outboxes(self) -> Iterable[Outbox]:
        """See ``ListedConnection``."""
        return () if self.long_response is None else (self.long_response.outbox,)

    def figures(self) -> ConnectionFigures:
        """See ``StreamClient``."""
        return self._figures.with_outboxes(self.outboxes(), self.leaving)

    # Requests

    def dataReceived(self, data: bytes) -> None:
        """See IProtocol."""
        if self._departure.discards_input:
            return
        if self.upgraded and self.long_response is not None:
            self.long_response.data_received(data)
            return
        if self.postpones(data):
            self._settle()
            return
        if self._times.received(len(data)) and (problem := http_problem(data)):
            self.refuse(ApiError(BAD_REQUEST, *problem))
            return
        super().dataReceived(data)
        if not self.upgraded:
            self.stream.bufferSize = self.next_read
        self._settle()

    def lineReceived(self, line: bytes) -> None:
        """See LineReceiver."""
        if not self._departure.discards_input:
            super().lineReceived(line)

    def rawDataReceived(self, data: bytes) -> None:
        """See LineReceiver; after an upgrade, the bytes that have arrived with the request."""
        if self.upgraded and self.long_response is not None:
            self.long_response.data_received(data)
        elif not self._departure.discards_input:
            super().rawDataReceived(data)

    def body_limit(self) -> tuple[int, Shares]:
        """See ``ApiServer``, for the current request."""
        return self.server.body_limit(self._command, self._path)

    def allContentReceived(self) -> None:
        """The request has arrived completely."""
        self._times.arrived()
        super().allContentReceived()

    def requestDone(self, request: Request) -> None:
        """The response has been sent."""
        self.cut = None
        super().requestDone(request)

    def begin_next(self, request: Request) -> None:
        """See ``BoundedChannel``."""
        self._times.answered()
        super().begin_next(request)
        self._settle()

    def _settle(self) -> None:
        # Not between two requests: a client that has closed its half gets the responses to all.
        if not self.is_parsing:
            self.charge_input(discarded=self._departure.discards_input)
            self._departure.answered()

    def response_ended(self) -> None:
        """The long response has ended in order."""
        if self.long_response is not None:
            self._figures.ended(self.long_response.outbox)
        if self.leaving:
            # Some of it may not be taken.
            self._last_response = self.long_response
        self.long_response = None

    def upgrade_ended(self) -> None:
        """The long response has ended, and with it the connection."""
        self.loseConnection()
        self.response_ended()
        self._times.is_answering = False
        self._departure.answered()

    # The transport

    def pauseProducing(self) -> None:
        """The transport has more than it can send now."""
        self.output_full = True
        if self.long_response is None and self.cut is None and not self._departure.has_ended:
            # An outbox counts its own bytes, and a stream is charged with all it may take.
            self._unsent.set(unsent_bytes(self.stream))
        super().pauseProducing()

    def resumeProducing(self) -> None:
        """The transport has sent all its bytes."""
        self.output_full = False
        self._unsent.set(0)
        super().resumeProducing()
        self._departure.drained()

    def readConnectionLost(self) -> None:
        """The client sends nothing more: it gets the responses to its requests."""
        self._departure.on(Event.HALF_CLOSE)
        if self.long_response is not None:
            self.long_response.input_ended()

    def writeConnectionLost(self) -> None:
        """The kernel has all that was written, and our half is closed."""
        self._departure.on(Event.DRAINED)

    def loseConnection(self) -> None:
        """See ITransport; twisted.web calls it after the last response."""
        self._departure.on(Event.CLOSE)

    # As a client of the broker

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``: close idle connections, refuse requests that are too slow."""
        if self.leaving:
            return
        if self._times.is_answering:
            if self.long_response is not None:
                self.long_response.sweep(now)
        elif self._times.is_slow(now, self.arrival_seconds):
            self.refuse(ApiError(TIMEOUT, "timeout", "the request took too long to arrive"))
        elif self._times.is_idle(now, self.idle_seconds):
            self._end_reason = "idle"
            self.loseConnection()

    def drain(self) -> None:
        """See ``ConnectedClient``: the current request is answered, but a stream is cut."""
        if not self.leaving and self._end_reason == _LEFT:
            self._end_reason = STOPPED
        self.persistent = 0
        self._departure.on(Event.DRAIN)
        if self.long_response is not None:
            self.long_response.drain(self.end_reason)
        elif self.cut is not None:
            self.cut("the broker stops" if self._end_reason == STOPPED else self.end_reason)

    def dismiss(self, reason: str) -> None:
        """See ``ConnectedClient``: the current request is answered, but a stream is cut."""
        if self.leaving:
            self.abort(reason)
            return
        self._end_reason = reason
        self.drain()

    def abort(self, reason: str) -> None:
        """See ``ConnectedClient``."""
        if self._end_reason == _LEFT:
            self._end_reason = reason
        self._departure.on(Event.ABORT)

    evict = abort

    def end(self) -> None:
        """See ``Leaver``."""
        self._unsent.set(0)
        self.charge_input(discarded=True)
        self.listener.handshakes.done(self)
        response, self.long_response = self.long_response, None
        if response is not None:
            self._last_response = response
            response.end()
            self._figures.ended(response.outbox)
        events, self._events = self._events, None
        report_end(self.listener, self, self.label, self._end_reason, events, self._figures)

    def discarded(self, nbytes: int) -> None:
        """See ``Leaver``: messages are counted, other responses are not."""
        response, self._last_response = self._last_response, None
        if response is not None:
            response.discarded(nbytes)
