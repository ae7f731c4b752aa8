"""Builds the TLS streams of a listener, with the certificate that is current."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cryptography import x509
from OpenSSL import SSL
from twisted.internet.interfaces import (
    IAddress,
    IOpenSSLServerConnectionCreator,
    IProtocolFactory,
    IProtocolNegotiationFactory,
    IReactorTime,
)
from twisted.protocols.policies import WrappingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

from pubsub.wire.handshake_admission import Admit
from pubsub.wire.server_tls import ServerTls
from pubsub.wire.tls_stream import Refuse, TlsStream

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget


@implementer(IOpenSSLServerConnectionCreator)
class _Creator:
    """Makes the connections with the current settings, for Twisted."""

    def __init__(self, current: Callable[[], ServerTls | None]) -> None:
        self._current = current

    def serverConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """See IOpenSSLServerConnectionCreator."""
        tls = self._current()
        assert tls is not None
        return SSL.Connection(tls.context, None)


@implementer(IProtocolNegotiationFactory)
class TlsFactory(TLSMemoryBIOFactory):
    """Builds the streams of a listener: over TLS if ``current`` returns one, else plain ones.

    ``current`` is called for each connection, so that a new certificate needs no new listener.
    """

    protocol = TlsStream

    def __init__(
        self,
        current: Callable[[], ServerTls | None],
        factory: IProtocolFactory,
        refuse: Refuse,
        clock: IReactorTime,
        memory: MemoryBudget | None = None,
        admit: Admit | None = None,
        frame_seconds: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(_Creator(current), False, factory, clock)
        self._current = current
        self.refuse = refuse
        self.memory = memory
        self.admit = admit
        self.frame_seconds = frame_seconds

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """See IProtocolFactory."""
        if self._current() is None:
            return self.wrappedFactory.buildProtocol(addr)
        return super().buildProtocol(addr)

    def logPrefix(self) -> str:
        """See ILoggingContext."""
        if self._current() is None:
            return type(self.wrappedFactory).__name__
        return super().logPrefix()  # type: ignore[no-any-return, no-untyped-call]

    def acceptableProtocols(self) -> list[bytes]:
        """See IProtocolNegotiationFactory; also for an ``ssl:`` endpoint, which wraps this."""
        wrapped = self.wrappedFactory
        if not IProtocolNegotiationFactory.providedBy(wrapped):
            return []
        return list(wrapped.acceptableProtocols())

    def answer_without_tls(self, data: bytes) -> bytes:
        """Return the answer to a client that begins with ``data``, which are not TLS, or nothing.

        The factory of the protocol has it; a client of TLS gets none.
        """
        find = getattr(self.wrappedFactory, "answer_without_tls", None)
        return b"" if find is None else bytes(find(data))


def endpoint_certificates(endpoint: object) -> list[x509.Certificate]:
    """Return the certificates of an ``ssl:`` endpoint, which has read them when it was made.

    Other endpoints have none. Twisted has no method for it.
    """
    endpoint = getattr(endpoint, "_wrappedEndpoint", endpoint)
    options: Any = getattr(endpoint, "_sslContextFactory", None)
    own = getattr(options, "certificate", None)
    if own is None:
        return []
    return [one.to_cryptography() for one in (own, *(options.extraCertChain or ()))]


def use_tls_streams(
    factory: object,
    refuse: Refuse,
    memory: MemoryBudget | None,
    admit: Admit,
    frame_seconds: Callable[[], float],
) -> None:
    """Have the TLS wrapper of an ``ssl:`` endpoint among the wrappers of ``factory``, if any, build
    TlsStreams.
    """
    while isinstance(factory, WrappingFactory):
        if isinstance(factory, TLSMemoryBIOFactory) and not isinstance(factory, TlsFactory):
            factory.protocol = TlsStream
            factory.refuse = refuse  # type: ignore[attr-defined]
            factory.memory = memory  # type: ignore[attr-defined]
            factory.admit = admit  # type: ignore[attr-defined]
            factory.frame_seconds = frame_seconds  # type: ignore[attr-defined]
            answer = getattr(factory.wrappedFactory, "answer_without_tls", None)
            factory.answer_without_tls = answer  # type: ignore[attr-defined]
        factory = factory.wrappedFactory
