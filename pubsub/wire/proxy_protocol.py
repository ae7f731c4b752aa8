"""Connections behind a proxy that sends the PROXY header (``haproxy:`` endpoints).

Twisted's wrapper passes on neither half-closing nor the end of a handshake, so that the client's
half-close would end the connection, and the broker's own would end with a timeout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import cast

from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from zope.interface import implementer

PROXIES_ARE_KNOWN = True
"""False with a Twisted that has the classes for the PROXY header elsewhere: they are private. The
layers below the header would then be taken for the client's, so such endpoints are refused."""
try:
    from twisted.protocols.haproxy._v2parser import V2Parser
    from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory
except ImportError:
    PROXIES_ARE_KNOWN = False
    HAProxyProtocolWrapper = ProtocolWrapper  # type: ignore[assignment, misc]
    HAProxyWrappingFactory = type("HAProxyWrappingFactory", (WrappingFactory,), {})  # type: ignore[assignment, misc]

# Additional fields of version 2 of the header: that of TLS, and the client's common name in it.
_TLS, _COMMON_NAME = 0x20, 0x22
# Bits of the field of TLS: the client has presented a certificate, on this connection or an earlier
# one of the session.
_HAS_CERTIFICATE = 0x02 | 0x04
_FIELD = struct.Struct("!BH")
_CLIENT = struct.Struct("!BI")


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

    @property
    def certified_name(self) -> str:
        """The common name of the client's certificate, which the proxy has verified; or empty."""
        info = self._proxyInfo
        return "" if info is None else certified_name(info.header)

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


def certified_name(header: bytes) -> str:
    """Return the common name in a PROXY header of version 2, if the proxy has verified it.

    Empty without such a certificate, and for a header whose fields are malformed (§2.2.6).
    """
    if not header.startswith(V2Parser.PREFIX):
        return ""
    start = 16 + struct.calcsize(V2Parser.ADDRESSFORMATS.get(header[13], ""))
    try:
        tls = dict(_fields(header[start:])).get(_TLS, b"")
        if len(tls) < _CLIENT.size:
            return ""
        flags, failed = _CLIENT.unpack_from(tls)
        if failed or not flags & _HAS_CERTIFICATE:
            return ""
        return dict(_fields(tls[_CLIENT.size :])).get(_COMMON_NAME, b"").decode()
    except ValueError:
        return ""


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the value of each field; raises ValueError."""
    at = 0
    while at < len(data):
        if len(data) - at < _FIELD.size:
            raise ValueError
        kind, length = _FIELD.unpack_from(data, at)
        at += _FIELD.size
        if len(data) - at < length:
            raise ValueError
        yield kind, data[at : at + length]
        at += length
