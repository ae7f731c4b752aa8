"""Connections behind a proxy that sends the PROXY header (``haproxy:`` endpoints).

Twisted's wrapper passes on neither half-closing nor the end of a handshake, so that the client's
half-close would end the connection, and the broker's own would end with a timeout. It closes
connections without a header silently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    IHandshakeListener,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from zope.interface import implementer

from pubsub.broker.memory_budget import MemoryBudget, MemoryHolder
from pubsub.wire.peer_address import address_text, is_local
from pubsub.wire.proxy_header import BadHeader, ProxyHeader, read_header
from pubsub.wire.read_buffer import ReadBuffer

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.wire.tls_stream import Refuse

PROXIES_ARE_KNOWN = True
"""False with a Twisted that has the classes for the PROXY header elsewhere: they are private. The
layers below the header would then be taken for the client's, so such endpoints are refused."""
try:
    from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory
except ImportError:
    PROXIES_ARE_KNOWN = False
    HAProxyProtocolWrapper = ProtocolWrapper  # type: ignore[assignment, misc]
    HAProxyWrappingFactory = type("HAProxyWrappingFactory", (WrappingFactory,), {})  # type: ignore[assignment, misc]

BAD_HEADER = "proxy-header"
"""The reason of a connection that does not begin with a PROXY header."""


@implementer(IHalfCloseableProtocol)
class ProxiedStream(HAProxyProtocolWrapper):
    """The transport of a connection behind a proxy.

    The header of the proxy is the handshake of such a transport.
    """

    _header: ProxyHeader | None = None
    _source: IAddress | None = None
    _is_refused = False
    # The bytes of the header while it has arrived in part.
    _begun: ReadBuffer | None = None

    def dataReceived(self, data: bytes) -> None:
        """See IProtocol."""
        if self._header is not None:
            self.wrappedProtocol.dataReceived(data)
        elif not self._is_refused:
            if self._begun is not None:
                self._begun.add(data, None)
                data = self._begun.take()
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        try:
            found = read_header(data)
        except BadHeader:
            self._refuse()
            return
        if found is None:
            if self._begun is None:
                self._begun = ReadBuffer(self, self.factory.memory)
            self._begun.start(data, 0, len(data))
            return
        self._forget()
        self._header, length = found
        self._source = self._believed(self._header.source)
        if IHandshakeListener.providedBy(self.wrappedProtocol):
            self.wrappedProtocol.handshakeCompleted()
        if len(data) > length:
            self.wrappedProtocol.dataReceived(data[length:])

    def _refuse(self) -> None:
        self._is_refused = True
        self._forget()
        refuse: Refuse = self.factory.refuse
        refuse(BAD_HEADER, address_text(self.getPeer()))
        self.loseConnection()  # type: ignore[no-untyped-call]

    def _forget(self) -> None:
        """The bytes of the header are not needed any more."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.clear()

    @property
    def held(self) -> int:
        """See ``MemoryHolder``: the bytes of the header that are charged."""
        return 0 if self._begun is None else self._begun.charged

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``: disconnect the client."""
        cast("MemoryHolder", self.wrappedProtocol).evict(reason)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See IProtocol."""
        self._forget()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def _believed(self, source: IAddress | None) -> IAddress | None:
        """Return ``source``, or None if it is an address of the proxy's machine, but not of ours.

        Otherwise clients of another machine would count as clients of this one.
        """
        assert self.transport is not None
        if source is None or (is_local(source) and not is_local(self.transport.getPeer())):
            return None
        return source

    def getPeer(self) -> IAddress:
        """See ITransport: the client's address, or the proxy's if the client's is not known."""
        assert self.transport is not None
        return self.transport.getPeer() if self._source is None else self._source

    def getHost(self) -> IAddress:
        """See ITransport: the address that the client has connected to."""
        assert self.transport is not None
        known = None if self._header is None else self._header.destination
        return self.transport.getHost() if known is None else known

    @property
    def has_header(self) -> bool:
        """Whether the header of the proxy has arrived."""
        return self._header is not None

    @property
    def certified_name(self) -> str:
        """The common name of the client's certificate, which the proxy has verified; or empty."""
        return "" if self._header is None else self._header.certified_name

    def readConnectionLost(self) -> None:
        """See IHalfCloseableProtocol."""
        self._half_closeable.readConnectionLost()

    def writeConnectionLost(self) -> None:
        """See IHalfCloseableProtocol."""
        self._half_closeable.writeConnectionLost()

    @property
    def _half_closeable(self) -> IHalfCloseableProtocol:
        return cast(IHalfCloseableProtocol, self.wrappedProtocol)


def awaits_header(stream: object) -> bool:
    """Return whether ``stream`` is behind a proxy whose header has not arrived."""
    while isinstance(stream, ProtocolWrapper):
        if isinstance(stream, ProxiedStream):
            return not stream.has_header
        stream = stream.transport
    return False


def proxied(endpoint: IStreamServerEndpoint) -> IStreamServerEndpoint:
    """Return ``endpoint`` for connections that begin with the header of a proxy."""
    from twisted.protocols.haproxy import proxyEndpoint

    return proxyEndpoint(endpoint)


def use_proxied_streams(
    factory: object, refuse: Refuse, memory: MemoryBudget | None = None
) -> None:
    """Have the PROXY wrapper among the wrappers of ``factory``, if any, build ProxiedStreams.

    They call ``refuse`` with a reason and the proxy for each connection without a header, and
    charge headers that have arrived in part to ``memory``.
    """
    while isinstance(factory, WrappingFactory):
        if isinstance(factory, HAProxyWrappingFactory):
            factory.protocol = ProxiedStream  # type: ignore[assignment]
            factory.refuse = refuse  # type: ignore[attr-defined]
            factory.memory = MemoryBudget(0) if memory is None else memory  # type: ignore[attr-defined]
        factory = factory.wrappedFactory
