"""twisted.web's channel, which closes as every stream does (``departure.py``).

twisted.web itself waits without limit for a client that does not take what was sent to it, and
drops the responses to a client that has closed its half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request
from zope.interface import implementer

from pubsub.broker.identity import Identity
from pubsub.broker.marks import describe
from pubsub.wire.departure import Departure
from pubsub.wire.life_cycle import Event
from pubsub.wire.peer_address import address_text
from pubsub.wire.transport_identity import identity_of

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener
    from pubsub.wire.direct_transport import StreamTransport

log = Logger()


@implementer(IHalfCloseableProtocol)
class LeavingChannel(HTTPChannel):
    """The base of the API's connections: a ``Leaver``."""

    mark = 0
    """The number of the connection (see ``Marked``)."""
    _departure: Departure | None = None
    _identity: Identity | None = None
    _discards_input = False

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    @property
    def label(self) -> str:
        """See ``ListedSession``: the client's address, as it has no name."""
        return address_text(self.getPeer())

    def log_fields(self) -> dict[str, str]:
        """See ``Marked``."""
        return describe(self.mark, self.listener.protocol, self.label, self._identity)

    @property
    def identity(self) -> Identity:
        """The identity that the client has proved by its connection, and not in a request."""
        if self._identity is None:
            self._identity = identity_of(self.transport, self.listener.settings["tls-identity"])
        return self._identity

    # Input, until it is discarded

    def lineReceived(self, line: bytes) -> None:
        """See LineReceiver."""
        if not self._discards_input:
            super().lineReceived(line)

    def rawDataReceived(self, data: bytes) -> None:
        """See LineReceiver."""
        if not self._discards_input:
            super().rawDataReceived(data)

    # Events

    def loseConnection(self) -> None:
        """See ITransport; twisted.web calls it after the last response."""
        self._leave().on(Event.CLOSE)

    def abort(self, reason: str) -> None:
        """See ``Client``."""
        self._leave().on(Event.ABORT)

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""
        self.abort(reason)

    def readConnectionLost(self) -> None:
        """The client sends nothing more: it gets the responses to what it has sent."""
        self._leave().on(Event.HALF_CLOSE)

    def writeConnectionLost(self) -> None:
        """The kernel has all that was written, and our half is closed."""
        self._leave().on(Event.DRAINED)

    def resumeProducing(self) -> None:
        """The transport has sent all it had."""
        super().resumeProducing()
        if self._departure is not None:
            self._departure.on(Event.DRAINED)

    def requestDone(self, request: Request) -> None:
        """The response has been written."""
        super().requestDone(request)
        if self._departure is not None:
            self._departure.settle()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The transport is gone."""
        super().connectionLost(reason)
        self._leave().on(Event.LOST)

    def _leave(self) -> Departure:
        if self._departure is None:
            stream = cast("StreamTransport", self.transport)
            self._departure = Departure(self, stream, self.listener)
        return self._departure

    # As a ``Leaver``

    def discard_input(self) -> None:
        """See ``Leaver``."""
        self._discards_input = True

    def owes_answers(self) -> bool:
        """See ``Leaver``."""
        raise NotImplementedError

    def send_last(self, data: bytes) -> None:
        """See ``Leaver``: there is nothing to send behind a response."""

    def discarded(self, nbytes: int) -> None:
        """See ``Leaver``: responses are not counted."""

    def timed_out(self, seconds: float) -> None:
        """See ``Leaver``."""
        log.info(
            "http client {client!r} disconnected: did not read its response for {seconds:g} s",
            client=self.label,
            seconds=seconds,
            connection=self.log_fields(),
        )

    def end(self) -> None:
        """See ``Leaver``."""
        self._discards_input = True
