"""twisted.web's channel, with bounds for heads and for requests that arrive together.

twisted.web limits lines and headers (16 KiB together, 500 headers), and handles all requests of a
read at once. A client that does not wait for responses can have thousands of them in a read that
ends a body, or behind a request that is being answered. So they are handled in turns, like the
frames of the other protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.protocol import connectionDone
from twisted.web.http import HTTPChannel, Request

from pubsub.http_api.api_error import BAD_REQUEST, HEAD_TOO_LARGE, ApiError

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.broker.listener import Listener

HEAD_READ_BYTES = 1024
"""Bytes of a read between two bodies."""
# Frames that a request counts as (see ``FrameTurns``): it takes some 0.1 to 0.3 ms.
_REQUEST_FRAMES = 10


class BoundedChannel(HTTPChannel):
    """A connection whose errors are those of the API."""

    listener: Listener
    # Bytes behind a request that is being answered, above which no more is read.
    _optimisticEagerReadSize = HEAD_READ_BYTES
    # The request whose successors wait for their turn.
    _answered: Request | None = None

    # For subclasses

    def refuse(self, error: ApiError) -> None:
        """Refuse a request that has not arrived completely, and close."""
        raise NotImplementedError

    def begin_next(self, request: Request) -> None:
        """Handle the requests that have arrived behind ``request``, whose response is sent."""
        super().requestDone(request)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See IProtocol."""
        self._answered = None
        super().connectionLost(reason)

    # Heads

    def headerReceived(self, line: bytes) -> bool:
        """See ``HTTPChannel``."""
        try:
            return bool(super().headerReceived(line))
        except ValueError:
            # A Content-Length with more digits than ``int`` takes.
            self._respondToBadRequestAndDisconnect()
            return False

    def lineLengthExceeded(self, line: bytes) -> None:
        """See LineReceiver."""
        self.refuse(ApiError(HEAD_TOO_LARGE, "too-large", "a line of the head is too long"))

    def _respondToBadRequestAndDisconnect(self) -> None:
        # Without this, twisted.web answers with the status alone, and nothing is counted.
        message = "the request is malformed, or its head is longer than 16 KiB"
        self.refuse(ApiError(BAD_REQUEST, "invalid-request", message))

    # Turns

    def requestDone(self, request: Request) -> None:
        """The response has been sent: handle the next requests, now or in a later tick."""
        has_next = bool(self._buffer or self._dataBuffer)
        if self.listener.frame_turns.count(_REQUEST_FRAMES) and has_next:
            self._answered = request
            self._wait()
        else:
            self.begin_next(request)

    def _wait(self) -> None:
        self.listener.clock.callLater(0, self._take_turn)

    def _take_turn(self) -> None:
        if self.listener.frame_turns.are_over:
            self._wait()
            return
        request, self._answered = self._answered, None
        if request is not None:
            self.begin_next(request)
