"""The transport of a connection over TLS.

It differs from Twisted's in six things. Failed handshakes are counted with their reason. A client
that is held gets no further input, not even bytes that are decrypted already. The records of one
read are delivered together, up to ``bufferSize`` bytes in a tick as from a socket, and those of one
write are sent together and at once. The input in OpenSSL is bounded, and so are the messages of TLS
itself that a client can make it answer (see ``tls_input.py``). A protocol that speaks first does
not wait for its own handshake. And the end of the client's output (close_notify) does not end the
broker's own in TLS 1.3, as RFC 8446 §6.1 has it; in TLS 1.2 it does (RFC 5246 §7.2.1).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from OpenSSL import SSL
from twisted.internet.interfaces import IHalfCloseableProtocol, ITransport
from twisted.internet.main import CONNECTION_LOST
from twisted.internet.protocol import connectionDone
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.wire.direct_transport import READ_BYTES
from pubsub.wire.handshake_admission import first_refusal
from pubsub.wire.handshake_reasons import HANDSHAKE, handshake_reason
from pubsub.wire.peer_address import address_text
from pubsub.wire.record_deadline import RecordDeadline
from pubsub.wire.tls_input import FLOOD, TlsInput
from pubsub.wire.unsent_bytes import unsent_bytes

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget, MemoryHolder

Refuse = Callable[[str, str], object]
"""Takes a reason and the client."""
_RECORD_BYTES = 2**14
"""The most that a record of TLS has (RFC 8446 §5.1)."""
# Taken from OpenSSL at a time.
_OUTPUT_BYTES = 2**15


@implementer(IHalfCloseableProtocol)
class TlsStream(TLSMemoryBIOProtocol):
    """One connection."""

    verify_error = 0
    """The number of OpenSSL's last error if the client's certificate was not accepted."""
    bufferSize = READ_BYTES
    """See ``StreamTransport``."""
    _heard = False
    _paused = False
    # There are more decrypted bytes than the protocol reads in a tick.
    _is_divided = False
    # The pieces of one read are decrypted, and so many bytes of them are to be delivered together.
    _is_gathering = False
    _gathered = 0
    _input_ended = False

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
        self._decrypted: list[bytes] = []
        self._deadline = RecordDeadline(self)
        super().makeConnection(transport)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """See IProtocol."""
        if not (self._heard or self._may_begin(data)):
            return
        self._heard = True
        self._input.add(data)
        self._decrypt()
        self._deadline.follow(self._input.records.partial)

    def end(self, reason: str, answer: bytes = b"") -> None:
        """Count ``reason``; abort the connection, or send ``answer``, without TLS, and close it."""
        refuse: Refuse | None = getattr(self.factory, "refuse", None)
        if refuse is not None:
            refuse(reason, address_text(self._bottom.getPeer()))
        if answer:
            self._bottom.write(answer)
            self._tlsShutdownFinished(None)
        else:
            self.abortConnection()  # type: ignore[no-untyped-call]

    def _may_begin(self, data: bytes) -> bool:
        """Return whether the handshake may begin; end the connection if not."""
        if self.is_over:
            return False
        refused = first_refusal(self.factory, self._bottom.getPeer(), data)
        if refused is not None:
            self.end(*refused)
        return refused is None

    def _decrypt(self) -> None:
        """Give OpenSSL the input, a piece at a time, until the client is held."""
        waiting = self._input
        waiting.begin_turn()
        self._is_gathering = True
        while not (self.is_over or self._is_divided or (self._paused and self._handshakeDone)):
            piece = waiting.take(self._handshakeDone)
            if not piece:
                break
            super().dataReceived(piece)  # type: ignore[no-untyped-call]
            is_ordinary = waiting.is_ordinary()
            if not is_ordinary and waiting.is_flood(unsent_bytes(self._bottom)):
                self.end(FLOOD)
            elif waiting.takes_long(is_ordinary):
                self._bottom.pauseProducing()
                self.factory._clock.callLater(0, self._go_on)
                break
        self._is_gathering = False
        self._deliver()
        if self.is_over:
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
    def is_stalled(self) -> bool:
        """True if a record cannot arrive, or the limit of handshakes applies."""
        return self._paused or not self._handshakeDone

    @property
    def is_over(self) -> bool:
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
        """Decrypt the bytes that have arrived, unless the client is held."""
        more = True
        while not (
            self._lostTLSConnection or self._paused or self._is_divided or self._input_ended
        ):
            room = self.bufferSize - self._gathered
            # One more than a record has, so that what is less than that is all of one.
            size = min(room, _RECORD_BYTES + 1)
            try:
                data = self._tlsConnection.recv(size)
            except SSL.WantReadError:
                self._input.drained()
                break
            except SSL.ZeroReturnError:
                # Again after the delivery, which may hold the client.
                if self._gathered:
                    self._deliver()
                else:
                    self._close_notified()
            except SSL.Error:
                failure = Failure()
                self._deliver()
                self._tlsShutdownFinished(failure)
            else:
                self._decrypted.append(data)
                self._gathered += len(data)
                more = self._input.delivers(len(data) < size)
                if len(data) == room:
                    self._deliver_full()
                if not more:
                    break
        if not self._is_gathering:
            self._deliver()
        # Records of application data are not answered.
        if more and self._tlsConnection is not None:
            self._input.answered(self._flush_output([]))

    def _deliver(self) -> None:
        """Deliver the decrypted bytes."""
        if not self._gathered:
            return
        data = b"".join(self._decrypted)
        self._decrypted.clear()
        self._gathered = 0
        if not self._aborted:
            self.wrappedProtocol.dataReceived(data)

    def _deliver_full(self) -> None:
        """Deliver as many bytes as the protocol reads, and the rest later if it reads no more."""
        size = self._gathered
        self._deliver()
        if self.bufferSize <= size and not self._aborted:
            self._divide()

    # Output

    def _write(self, data: bytes) -> None:
        """Encrypt ``data`` and send it in one write."""
        if self._lostTLSConnection:
            return
        if self._appSendBuffer or not self._handshakeDone:
            # Twisted would pause the protocol, which then holds the client during its handshake.
            self._appSendBuffer.append(data)
            return
        at = 0
        plain, encrypted = memoryview(data), list[bytes]()
        try:
            while at < len(plain):
                at += self._tlsConnection.send(plain[at : at + _RECORD_BYTES])
                if at < len(plain):
                    # Each record at once, as OpenSSL never returns the memory of its buffers.
                    encrypted.append(self._tlsConnection.bio_read(_OUTPUT_BYTES))
        except SSL.WantReadError:
            self._bufferedWrite(bytes(plain[at:]))  # type: ignore[no-untyped-call]
        except SSL.Error:
            failure = Failure()
            self._flush_output(encrypted)
            self._tlsShutdownFinished(failure)
            return
        self._flush_output(encrypted)

    def _flushSendBIO(self) -> None:
        self._flush_output([])

    def _flush_output(self, parts: list[bytes]) -> int:
        """Send ``parts`` and all bytes that OpenSSL has written; return the number of all.

        Twisted sends the first 32 KiB. The rest, of a long list of authorities for example, would
        remain until the client sends something, which may wait for it.
        """
        with suppress(SSL.WantReadError):
            while True:
                parts.append(self._tlsConnection.bio_read(_OUTPUT_BYTES))
                if len(parts[-1]) < _OUTPUT_BYTES:
                    break
        data = b"".join(parts)
        if data:
            self._bottom.write(data)
        return len(data)

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
            self._deadline.restart()
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
        self._deadline.cancel()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

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
