"""Connections behind a proxy that sends the PROXY header (``haproxy:`` endpoints).

Twisted's wrapper passes on neither half-closing nor the end of a handshake, so that the client's
half-close would end the connection, and the broker's own would end with a timeout.
"""

from __future__ import annotations

from typing import cast

from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory
from twisted.protocols.policies import WrappingFactory
from zope.interface import implementer


@implementer(IHalfCloseableProtocol)
class ProxiedStream(HAProxyProtocolWrapper):
    """The transport of a connection behind a proxy.

    The header of the proxy is the handshake of such a transport.
    """

    _header_received = False

    def dataReceived(self, data: bytes) -> None:
        """See IProtocol."""
        super().dataReceived(data)
        if not self._header_received and self._proxyInfo is not None:
            self._header_received = True
            if IHandshakeListener.providedBy(self.wrappedProtocol):
                self.wrappedProtocol.handshakeCompleted()

    def readConnectionLost(self) -> None:
        """See IHalfCloseableProtocol."""
        self._half_closeable.readConnectionLost()

    def writeConnectionLost(self) -> None:
        """See IHalfCloseableProtocol."""
        self._half_closeable.writeConnectionLost()

    @property
    def _half_closeable(self) -> IHalfCloseableProtocol:
        return cast(IHalfCloseableProtocol, self.wrappedProtocol)


def use_proxied_streams(factory: object) -> None:
    """Have the PROXY wrapper among the wrappers of ``factory``, if any, build ProxiedStreams."""
    while isinstance(factory, WrappingFactory):
        if isinstance(factory, HAProxyWrappingFactory):
            factory.protocol = ProxiedStream  # type: ignore[assignment]
        factory = factory.wrappedFactory
