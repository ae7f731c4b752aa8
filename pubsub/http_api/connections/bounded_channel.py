"""twisted.web's channel, with bounds for heads, for chunks and for requests that arrive together.

twisted.web limits lines and headers (16 KiB together, 500 headers), keeps 64 KiB of trailers, and
handles all requests of a read at once. A client that does not wait for responses can have
thousands of them in a read that ends a body, and thousands of clients one each. So a request waits
for a later tick if this one has handled enough (``request_turns.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.protocol import connectionDone
from twisted.web.http import HTTPChannel, Request, _ChunkedTransferDecoder

from pubsub.broker.memory_budget import INPUT
from pubsub.errors import Refused
from pubsub.http_api.requests.api_error import BAD_REQUEST, HEAD_TOO_LARGE, UNAVAILABLE, ApiError
from pubsub.http_api.requests.operator_places import PLACE_SECONDS
from pubsub.wire.direct_transport import READ_BYTES
from pubsub.wire.unsent_bytes import TransportCharge

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.operator_places import OperatorPlaces
    from pubsub.http_api.requests.request_turns import RequestTurns

# Bytes of a read outside of bodies and long chunks: it has few requests or chunks.
_SHORT_READ_BYTES = 1024
# Bytes of the trailers of a request, which are ignored; each takes a hundred bytes of memory.
_TRAILER_BYTES = 1024
# Estimated bytes of memory of a header beside its text, and of the heads that a connection may have
# without being charged for them.
_HEADER_BYTES, _FREE_BYTES = 128, 4096


class BoundedChannel(HTTPChannel):
    """A connection whose errors are those of the API."""

    refused = False
    # Bytes behind a request that is being answered, above which no more is read.
    _optimisticEagerReadSize = _SHORT_READ_BYTES
    # The request whose successors wait for their turn.
    _answered: Request | None = None
    # A read that waits for its turn.
    _postponed = b""
    # The memory of the head that has arrived last, until its request is answered.
    _head_bytes = 0

    def __init__(self, listener: Listener, turns: RequestTurns, places: OperatorPlaces) -> None:
        super().__init__()
        self.listener = listener
        self._turns = turns
        self._places = places
        self._input = TransportCharge(lambda reason: self.evict(reason), listener.memory, INPUT)

    # For subclasses

    def refuse(self, error: ApiError) -> None:
        """Refuse a request that has not arrived completely, and close."""
        raise NotImplementedError

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""
        raise NotImplementedError

    @property
    def is_parsing(self) -> bool:
        """True while a read is parsed; more requests may follow."""
        return bool(self._busyReceiving)

    @property
    def next_read(self) -> int:
        """The bytes of the next read."""
        decoder = self._transferDecoder
        if isinstance(decoder, _ChunkedTransferDecoder):
            missing = decoder.length if decoder.state == "BODY" else 0
            return min(max(missing, _SHORT_READ_BYTES), READ_BYTES)
        return READ_BYTES if decoder else _SHORT_READ_BYTES

    def charge_input(self, discarded: bool = False) -> None:
        """Charge the memory of the requests that have arrived and are not answered or discarded."""
        if discarded:
            self._input.set(0)
            return
        head = self._receivedHeaderSize + _HEADER_BYTES * self._receivedHeaderCount
        behind = len(self._buffer) + len(self._postponed) + sum(map(len, self._dataBuffer))
        self._input.set(max(max(head, self._head_bytes) + behind - _FREE_BYTES, 0))

    def begin_next(self, request: Request) -> None:
        """Handle the requests that have arrived behind ``request``, whose response is sent."""
        self._head_bytes = 0
        super().requestDone(request)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See IProtocol."""
        self._answered, self._postponed = None, b""
        self._places.give_back(self)
        super().connectionLost(reason)
        # Now, not with the connection, which waits for the collector of cycles.
        self._buffer = b""
        self._dataBuffer.clear()
        self.requests.clear()

    # Heads

    def allHeadersReceived(self) -> None:
        """See ``HTTPChannel``."""
        self._head_bytes = self._receivedHeaderSize + _HEADER_BYTES * self._receivedHeaderCount
        if isinstance(self._transferDecoder, _ChunkedTransferDecoder):
            self._transferDecoder._maxTrailerHeadersSize = _TRAILER_BYTES
        if self.has_place:
            self._check_place()
        super().allHeadersReceived()

    def headerReceived(self, line: bytes) -> bool:
        """See ``HTTPChannel``."""
        try:
            return bool(super().headerReceived(line))
        except ValueError:
            # A Content-Length with more digits than ``int`` takes.
            self._respondToBadRequestAndDisconnect()
            return False

    def _send100Continue(self) -> None:
        if not self.refused:
            super()._send100Continue()

    def lineLengthExceeded(self, line: bytes) -> None:
        """See LineReceiver."""
        self.refuse(ApiError(HEAD_TOO_LARGE, "too-large", "a line of the head is too long"))

    def _respondToBadRequestAndDisconnect(self) -> None:
        # Without this, twisted.web answers with the status alone, and nothing is counted.
        message = "the request is malformed, or has too long a head (16 KiB) or trailers (1 KiB)"
        self.refuse(ApiError(BAD_REQUEST, "invalid-request", message))

    # At the bounds of memory and of connections

    @property
    def has_place(self) -> bool:
        """Whether the connection is admitted beyond the bounds, for a request of an operator."""
        return self._places.is_taken_by(self)

    def _check_place(self) -> None:
        """Refuse a request that is not one of an operator, unless there is room again."""
        try:
            self._places.check()
        except Refused as refused:
            if not self._places.serves(self._path):
                self.refuse(ApiError.from_refusal(refused, UNAVAILABLE))
        else:
            self._places.give_back(self)

    def checkPersistence(self, request: Request, version: bytes) -> bool:
        """See ``HTTPChannel``: a place is for one request."""
        if self.has_place:
            request.responseHeaders.setRawHeaders(b"connection", [b"close"])
            return False
        return bool(super().checkPersistence(request, version))

    @property
    def idle_seconds(self) -> float:
        """The seconds that the connection may be without a request; zero stands for a minute."""
        return PLACE_SECONDS if self.has_place else self.listener.idle_timeout

    @property
    def arrival_seconds(self) -> float:
        """The seconds in which a request must arrive unless it is fast; zero: no limit."""
        return PLACE_SECONDS if self.has_place else self.listener.frame_seconds

    # Turns

    def postpones(self, data: bytes) -> bool:
        """Return whether a read outside of a body is handled in a later tick."""
        if self._postponed:
            self._postponed += data
            return True
        if self.is_parsing or self._handlingRequest or self._transferDecoder:
            return False
        if not self._turns.are_over:
            # There are more if some have waited behind a request.
            self._turns.count_bytes(min(len(data), _SHORT_READ_BYTES))
            return False
        self._postponed = data
        self._networkProducer.pauseProducing()
        self._turns.wait(self._handle_postponed)
        return True

    def _handle_postponed(self) -> None:
        data, self._postponed = self._postponed, b""
        if data:
            if not self._waitingForTransport:
                self._networkProducer.resumeProducing()
            self.dataReceived(data)

    def requestDone(self, request: Request) -> None:
        """The response has been sent: handle the next requests, now or in a later tick."""
        has_next = bool(self._buffer or self._dataBuffer)
        if self._turns.count() and has_next:
            self._answered = request
            self._turns.wait(self._handle_next)
        else:
            self.begin_next(request)

    def _handle_next(self) -> None:
        request, self._answered = self._answered, None
        if request is not None:
            self.begin_next(request)
