"""The client on Twisted's reactor."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine
from socket import gaierror
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectError, ConnectionDone, DNSLookupError
from twisted.internet.interfaces import IHandshakeListener, IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.client.client_tls import TlsOptions
from pubsub.client.runtime import Cancel, Ending, Observer, Runtime
from pubsub.wire.connect_errors import alert_text, why_not
from pubsub.wire.loopback import use_reno_on_loopback
from pubsub.wire.outgoing_tls import ClientFiles, tls_trouble

if TYPE_CHECKING:
    from twisted.internet.interfaces import IOpenSSLClientConnectionCreator

_CONNECT_SECONDS = 30


class _TwistedWaiter:
    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._deferred: Deferred[None] = Deferred()
        self.awaitable: Awaitable[None] = self._deferred

    def wake(self) -> None:
        if not self._deferred.called:
            # Within this call, the program would be entered from inside the link.
            self._reactor.callLater(0, self._fire)

    def _fire(self) -> None:
        if not self._deferred.called:
            self._deferred.callback(None)


class TwistedRuntime(Runtime):
    """A reactor."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def now(self) -> float:
        """See ``Runtime``."""
        seconds: float = self._reactor.seconds()
        return seconds

    def call_later(self, seconds: float, function: Callable[[], None]) -> Cancel:
        """See ``Runtime``."""
        call = self._reactor.callLater(seconds, function)
        return lambda: call.cancel() if call.active() else None

    def call_from_any_thread(self, function: Callable[[], None]) -> None:
        """See ``Runtime``."""
        self._reactor.callFromThread(function)

    def waiter(self) -> _TwistedWaiter:
        """See ``Runtime``."""
        return _TwistedWaiter(self._reactor)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """See ``Runtime``."""
        Deferred.fromCoroutine(work)

    def at_end(self, end: Ending) -> Cancel:
        """See ``Runtime``."""
        reactor, stopping = self._reactor, False

        def stop() -> Deferred[None]:
            nonlocal stopping
            stopping = True
            return Deferred.fromCoroutine(end())

        def cancel() -> None:
            # A trigger that runs cannot be removed any more.
            if not stopping:
                reactor.removeSystemEventTrigger(trigger)

        trigger = reactor.addSystemEventTrigger("before", "shutdown", stop)
        return cancel

    def connect(self, host: str, port: int, tls: TlsOptions | None, observer: Observer) -> Cancel:
        """See ``Runtime``."""
        reactor = self._reactor
        streams: list[_TwistedStream] = []

        def build() -> _TwistedStream:
            streams.append(_TwistedStream(observer) if tls is None else _TwistedTlsStream(observer))
            return streams[-1]

        def cancel() -> None:
            attempt.cancel()
            # The TCP connection may be there, and its handshake not at its end.
            for stream in streams:
                if stream.transport is not None:
                    stream.abort()

        factory: Any = Factory.forProtocol(build)
        # Otherwise each attempt is two lines in the log of the program.
        factory.noisy = False
        try:
            if tls is not None:
                factory = TLSMemoryBIOFactory(_creator(host, tls), True, factory, reactor)
        except Exception as error:
            call = reactor.callLater(0, observer.lost, str(error))
            return lambda: call.cancel() if call.active() else None
        endpoint = HostnameEndpoint(reactor, host, port, timeout=_CONNECT_SECONDS)
        attempt = endpoint.connect(factory)
        attempt.addErrback(lambda failure: observer.lost(_text(failure)))
        return cancel


def _creator(host: str, tls: TlsOptions) -> IOpenSSLClientConnectionCreator:
    """Return the options that verify that the certificate is valid for ``host``.

    Raises ConfigurationError.
    """
    files = ClientFiles("tls", *(one or "" for one in (tls.ca, tls.certificate, tls.key)))
    creator: IOpenSSLClientConnectionCreator = files.options(host, "")
    return creator


def _text(failure: Failure, transport: object = None) -> str:
    """Return why an attempt failed or a connection ended, as the client on asyncio does."""
    error = failure.value
    if trouble := tls_trouble(failure, transport):
        alert = alert_text(trouble)
        return f"TLS failed: {alert}" if alert else trouble
    if isinstance(error, DNSLookupError):
        return why_not(gaierror())
    if isinstance(error, ConnectError) and isinstance(number := error.osError, int):
        return os.strerror(number).lower()
    return failure.getErrorMessage() or type(error).__name__


@implementer(IPushProducer)
class _TwistedStream(Protocol):
    """The transport of a link, which reports its events to the observer."""

    transport: Any

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._reading = True

    # Protocol

    def connectionMade(self) -> None:
        use_reno_on_loopback(self.transport.getHandle(), self.transport.getPeer().host)
        self._begin()

    def _begin(self) -> None:
        self.transport.registerProducer(self, streaming=True)
        self._observer.made(self)

    def dataReceived(self, data: bytes) -> None:
        self._observer.received(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if reason.check(ConnectionDone):
            self._observer.lost("the broker closed the connection")
        else:
            self._observer.lost(_text(reason, self.transport))

    # IPushProducer

    def pauseProducing(self) -> None:
        self._observer.writable(False)

    def resumeProducing(self) -> None:
        self._observer.writable(True)

    def stopProducing(self) -> None:
        pass

    # Transport

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def close(self) -> None:
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def abort(self) -> None:
        self.transport.abortConnection()

    def set_reading(self, reading: bool) -> None:
        if reading == self._reading:
            return
        self._reading = reading
        if reading:
            self.transport.resumeProducing()
        else:
            self.transport.pauseProducing()


@implementer(IHandshakeListener)
class _TwistedTlsStream(_TwistedStream):
    """A stream that is there once the broker's certificate is verified.

    Earlier bytes could not be distinguished from those that the broker may have received.
    """

    def connectionMade(self) -> None:
        """The TCP connection is there, below that of TLS."""
        use_reno_on_loopback(self.transport.transport.getHandle(), self.transport.getPeer().host)

    def handshakeCompleted(self) -> None:
        self._begin()
