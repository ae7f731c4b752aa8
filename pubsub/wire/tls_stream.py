"""The transport of a connection over TLS.

It differs from Twisted's in five things. Failed handshakes are counted with their reason. A client
that is held gets no further input, not even bytes that are decrypted already. A protocol that reads
few bytes at a time (``bufferSize``) gets as many in a tick, as from a socket. The input in OpenSSL
is bounded, and so are the messages of TLS itself that a client can make it answer (see
``tls_input.py``). And the end of the client's output (close_notify) does not end the broker's own
in TLS 1.3, as RFC 8446 §6.1 has it; in TLS 1.2 it does (RFC 5246 §7.2.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from OpenSSL import SSL
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    ITransport,
)
from twisted.internet.main import CONNECTION_LOST
from twisted.internet.protocol import connectionDone
from twisted.protocols.tls import BufferingTLSTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.errors import FrameTimeout
from pubsub.wire.peer_address import address_text, host_of, is_local, network_of
from pubsub.wire.server_tls import reason_of
from pubsub.wire.tls_input import FLOOD, TlsInput
from pubsub.wire.unsent_bytes import unsent_bytes

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.interfaces import MemoryHolder

Refuse = Callable[[str, str], object]
"""Takes a reason and the client."""
Admit = Callable[[str], bool]
"""Takes the address of a client, and returns whether it may do a handshake now."""
_READ_BYTES = 2**15

HANDSHAKE_RATE = "handshake-rate"
"""The reason of a handshake that was not begun, as its address has done too many."""
HANDSHAKE = "tls-handshake"
"""The reason of a handshake that failed in a way that has no reason of its own."""
# By a part of OpenSSL's text; the first that matches.
_REASONS = (
    ("http request", "tls-plaintext"),
    ("https proxy request", "tls-plaintext"),
    ("wrong version number", "tls-plaintext"),
    ("packet length too long", "tls-plaintext"),
    ("did not return a certificate", "tls-certificate-missing"),
    ("certificate verify failed", "tls-certificate-untrusted"),
    ("alert", "tls-rejected"),
    ("unsupported protocol", "tls-version"),
    ("version too low", "tls-version"),
    ("no shared cipher", "tls-cipher"),
    ("no application protocol", "tls-alpn"),
)
# X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED.
_TIME_ERRORS = (9, 10)


def handshake_reason(error: BaseException, verify_error: int = 0) -> str:
    """Return the reason of a handshake that failed with ``error``, for counters and logs.

    ``verify_error`` is the number of OpenSSL's error if the client's certificate was not accepted.
    """
    if verify_error in _TIME_ERRORS:
        return "tls-certificate-expired"
    text = reason_of(error).lower()
    return next((reason for part, reason in _REASONS if part in text), HANDSHAKE)


@implementer(IHalfCloseableProtocol)
class TlsStream(BufferingTLSTransport):
    """One connection."""

    verify_error = 0
    """The number of OpenSSL's last error if the client's certificate was not accepted."""
    bufferSize = _READ_BYTES
    """See ``StreamTransport``."""
    _heard = False
    _paused = False
    # There are more decrypted bytes than the protocol reads in a tick.
    _is_divided = False
    _input_ended = False
    # The record that has arrived in part, and since when; the timer is kept for the next ones.
    _partial = 0
    _partial_since = 0.0
    _record_timer: IDelayedCall | None = None

    def acceptable_protocols(self) -> list[bytes]:
        """Return the names of the protocols that the listener serves (ALPN)."""
        # The wrapper of an ``ssl:`` endpoint knows none (see ``tls_factory.py``).
        found: Callable[[], list[bytes]] | None
        found = getattr(self.factory, "acceptableProtocols", None)
        return [] if found is None else found()

    # Input

    def makeConnection(self, transport: ITransport) -> None:
        """See IProtocol."""
        memory: MemoryBudget | None = getattr(self.factory, "memory", None)
        self._input = TlsInput(self.evict, memory)
        super().makeConnection(transport)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """See IProtocol."""
        if not self._heard and not self._is_admitted():
            return
        self._heard = True
        self._input.add(data)
        self._decrypt()
        partial = self._input.records.partial
        if partial != self._partial:
            self._partial = partial
            if partial:
                self._record_begins()

    # The time limit of a record

    def _record_begins(self) -> None:
        self._partial_since = self.factory._clock.seconds()
        seconds = self._frame_seconds
        if seconds and self._record_timer is None and not self._is_over:
            self._record_timer = self.factory._clock.callLater(seconds, self._check_record)

    @property
    def _frame_seconds(self) -> float:
        found: Callable[[], float] | None = getattr(self.factory, "frame_seconds", None)
        return 0.0 if found is None else found()

    def _check_record(self) -> None:
        """End the connection if the record that arrives takes too long."""
        self._record_timer = None
        clock, seconds = self.factory._clock, self._frame_seconds
        if not (self._partial and seconds) or self._is_over:
            return
        if self._paused or not self._handshakeDone:
            # It cannot arrive, or the limit of handshakes applies.
            self._partial_since = clock.seconds()
        left = self._partial_since + seconds - clock.seconds()
        if left > 0:
            self._record_timer = clock.callLater(left, self._check_record)
        else:
            self._end(FrameTimeout.reason)

    def _end(self, reason: str) -> None:
        """Abort the connection, and count ``reason``."""
        refuse: Refuse | None = getattr(self.factory, "refuse", None)
        if refuse is not None:
            refuse(reason, address_text(self._bottom.getPeer()))
        self.abortConnection()  # type: ignore[no-untyped-call]

    def _is_admitted(self) -> bool:
        """Return whether the handshake may begin; abort the connection if not."""
        admit: Admit | None = getattr(self.factory, "admit", None)
        peer = self._bottom.getPeer()
        if self._aborted or admit is None or is_local(peer) or admit(network_of(host_of(peer))):
            return not self._aborted
        self._end(HANDSHAKE_RATE)
        return False

    def _decrypt(self) -> None:
        """Give OpenSSL the input, a piece at a time, until the client is held."""
        waiting = self._input
        while not (self._is_over or self._is_divided or (self._paused and self._handshakeDone)):
            piece = waiting.take()
            if not piece:
                break
            super().dataReceived(piece)  # type: ignore[no-untyped-call]
            if waiting.is_ordinary():
                continue
            if waiting.is_flood(unsent_bytes(self._bottom)):
                self._end(FLOOD)
            elif waiting.takes_long():
                self._bottom.pauseProducing()
                self.factory._clock.callLater(0, self._go_on)
                break
        if self._is_over:
            waiting.clear()
        waiting.charge()

    def _go_on(self) -> None:
        """Others have been served."""
        if self._tlsConnection is not None and not (self._paused or self._is_divided):
            self._bottom.resumeProducing()
            self._decrypt()

    def _divide(self) -> None:
        """Deliver the rest in later ticks; nothing more is read meanwhile."""
        self._is_divided = True
        self._bottom.pauseProducing()
        self.factory._clock.callLater(0, self._deliver_rest)

    def _deliver_rest(self) -> None:
        self._is_divided = False
        if self._tlsConnection is None or self._paused:
            return
        self._deliver_held()
        if self._tlsConnection is not None and not (self._paused or self._is_divided):
            self._bottom.resumeProducing()

    @property
    def _is_over(self) -> bool:
        """True if further input has no meaning (RFC 8446 §6.1)."""
        return (
            self._lostTLSConnection
            or self._aborted
            or self._input_ended
            or self._tlsConnection is None
        )

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``: disconnect the client."""
        cast("MemoryHolder", self.wrappedProtocol).evict(reason)

    def _flushReceiveBIO(self) -> None:
        """Deliver the bytes that can be decrypted, unless the client is held."""
        while not (
            self._lostTLSConnection or self._paused or self._is_divided or self._input_ended
        ):
            size = min(self.bufferSize, _READ_BYTES)
            try:
                data = self._tlsConnection.recv(size)
            except SSL.WantReadError:
                break
            except SSL.ZeroReturnError:
                self._close_notified()
            except SSL.Error:
                self._tlsShutdownFinished(Failure())
            else:
                self._input.delivers()
                if not self._aborted:
                    self.wrappedProtocol.dataReceived(data)
                    if len(data) == size and self.bufferSize < _READ_BYTES:
                        self._divide()
        if self._tlsConnection is not None:
            self._input.answered(self._flush_output())

    def _flushSendBIO(self) -> None:
        self._flush_output()

    def _flush_output(self) -> int:
        """Send all bytes that OpenSSL has written; return their number.

        Twisted sends the first 32 KiB. The rest, of a long list of authorities for example, would
        remain until the client sends something, which may wait for it.
        """
        total = 0
        while True:
            try:
                data = self._tlsConnection.bio_read(_READ_BYTES)
            except SSL.WantReadError:
                return total
            total += len(data)
            self._bottom.write(data)
            if len(data) < _READ_BYTES:
                return total

    def _close_notified(self) -> None:
        """The client sends nothing more."""
        is_half = self._tlsConnection.get_protocol_version_name() == "TLSv1.3"
        application = self.wrappedProtocol
        if is_half and not self.disconnecting and IHalfCloseableProtocol.providedBy(application):
            self._input_ended = True
            cast("IHalfCloseableProtocol", application).readConnectionLost()
        else:
            self._shutdownTLS()  # type: ignore[no-untyped-call]
            self._tlsShutdownFinished(None)

    def pauseProducing(self) -> None:
        """See IPushProducer."""
        self._paused = True
        self._bottom.pauseProducing()

    def resumeProducing(self) -> None:
        """See IPushProducer. Bytes decrypted meanwhile are delivered later, as by a socket."""
        if self._paused:
            self._paused = False
            self._partial_since = self.factory._clock.seconds()
            self.factory._clock.callLater(0, self._deliver_held)
        if not self._is_divided:
            self._bottom.resumeProducing()

    def _deliver_held(self) -> None:
        if self._tlsConnection is not None and self._handshakeDone:
            self._flushReceiveBIO()
            self._decrypt()

    # The end

    def readConnectionLost(self) -> None:
        """See IHalfCloseableProtocol: the client has closed its half of the stream below.

        Without a close_notify before it an attacker may have done that, and nothing more is sent.
        """
        if self._input_ended:
            return
        self._count_failure(CONNECTION_LOST)
        if unsent_bytes(self._bottom):
            self._bottom.abortConnection()
        else:
            self._bottom.loseConnection()

    def writeConnectionLost(self) -> None:
        """See IHalfCloseableProtocol."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See IProtocol."""
        self._count_failure(reason.value)
        self._input.end()
        timer, self._record_timer = self._record_timer, None
        if timer is not None:
            timer.cancel()
        super().connectionLost(reason)

    # Failed handshakes

    def _tlsShutdownFinished(self, reason: Failure | None) -> None:
        if reason is not None:
            self._count_failure(reason.value)
        super()._tlsShutdownFinished(reason)  # type: ignore[no-untyped-call]

    def _count_failure(self, error: BaseException | None) -> None:
        """Count the handshake if it is not done, unless it was the broker that ended it.

        A connection that was closed without a byte is none: health checks make such connections.
        """
        if self._handshakeDone or self.disconnecting or not self._heard:
            return
        # Not again when the connection is lost.
        self._heard = False
        refuse: Refuse | None = getattr(self.factory, "refuse", None)
        if refuse is not None:
            reason = HANDSHAKE if error is None else handshake_reason(error, self.verify_error)
            refuse(reason, address_text(self._bottom.getPeer()))

    @property
    def _bottom(self) -> Any:
        return self.transport
