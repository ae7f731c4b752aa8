"""A listener's service: opens its endpoint, and a UDP port beside it if the factory serves UDP."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, cast

from twisted.application.service import Service
from twisted.internet import tcp
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.endpoints import AdoptedStreamServerEndpoint, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    IProtocolFactory,
    IReactorUDP,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import DatagramProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.errors import ConfigurationError, StartError
from pubsub.interfaces import IDatagramSource
from pubsub.tuning import LOOPBACK_RENO, TUNED, Tuning
from pubsub.wire.accept_errors import count_accept_errors
from pubsub.wire.light_transport import use_transports
from pubsub.wire.proxy_protocol import use_proxied_streams

log = Logger()
# Connections that the kernel completes before they are accepted. With Twisted's 50, SYNs are
# dropped when thousands of clients connect, each of which costs a client a second.
BACKLOG = 4096
KEEPALIVE = {"TCP_KEEPIDLE": 120, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 4}
"""TCP keepalive: a probe after so many idle seconds, then at this interval, and how many."""
_UNIX = re.compile(r"(haproxy:)?unix:")
# A colon after a backslash is part of the path.
_MODE = re.compile(r"(?<!\\):mode=")


class ListenerService(Service):
    """Serves ``factory`` at the endpoint ``description``.

    ``refuse`` is called with a reason and the client for each connection that cannot be accepted.
    Raises ConfigurationError if the description cannot be parsed, and from startService
    StartError if the endpoint cannot be listened on.
    """

    def __init__(
        self,
        protocol: str,
        description: str,
        factory: IProtocolFactory,
        reactor: object,
        refuse: Callable[[str, str], object] = lambda reason, client: None,
        tuning: Tuning = TUNED,
    ) -> None:
        self._protocol = protocol
        self._description = description
        self._factory = factory
        self._reactor = reactor
        self._refuse = refuse
        self._tuning = tuning
        self._endpoint = self._parse()
        self._ports: list[IListeningPort] = []

    def _parse(self) -> IStreamServerEndpoint:
        try:
            return _parse(self._reactor, self._description)
        except (ValueError, TypeError, LookupError, OSError, ImportError) as error:
            hint = ""
            if self._description.startswith("systemd:"):
                hint = " (is the process started by a systemd socket unit?)"
            raise ConfigurationError(
                f"{self._protocol}: cannot use endpoint {self._description!r}: "
                f"{type(error).__name__}: {error}{hint}"
            ) from None

    @property
    def protocol(self) -> str:
        """The name of the protocol that it serves."""
        return self._protocol

    @property
    def endpoint(self) -> str:
        """The endpoint string that it was made with."""
        return self._description

    @property
    def addresses(self) -> list[IAddress]:
        """The addresses it listens on, with the port that was chosen for port 0."""
        return [port.getHost() for port in self._ports]

    def privilegedStartService(self) -> None:
        """Listen, before privileges are dropped."""
        failures: list[Failure] = []
        listening = self._endpoint.listen(self._factory)
        listening.addCallback(self._listening).addErrback(failures.append)
        if failures:
            raise StartError(self._explain(failures[0]))

    def startService(self) -> None:
        """Listen, unless ``privilegedStartService`` has done so."""
        super().startService()  # type: ignore[no-untyped-call]
        if not self._ports:
            self.privilegedStartService()

    def stopService(self) -> Deferred[Any]:
        """Stop accepting connections. Open ones continue until the broker closes them."""
        super().stopService()  # type: ignore[no-untyped-call]
        ports, self._ports = self._ports, []
        return DeferredList([maybeDeferred(port.stopListening) for port in ports])

    def _listening(self, port: IListeningPort) -> None:
        self._ports.append(port)
        if isinstance(port, tcp.Port):
            count_accept_errors(port, self._refuse)
            use_proxied_streams(port.factory)
        if type(port) is tcp.Port:
            use_transports(port, self._tuning)
            port.socket.listen(BACKLOG)
            _set_options(port.socket)
            if LOOPBACK_RENO in self._tuning:
                _use_reno_on_loopback(port)
        log.info("{line}", line=f"{self._protocol} on {_where(port)}")
        if IDatagramSource.providedBy(self._factory):
            self._listen_udp(port)

    def _listen_udp(self, port: IListeningPort) -> None:
        """Open the UDP port. Its protocol closes it when the broker drains its clients."""
        protocol = cast(IDatagramSource, self._factory).datagram_protocol()
        if protocol is None:
            return
        host = port.getHost()
        if not isinstance(host, IPv4Address | IPv6Address):
            raise StartError(f"{self._protocol}: UDP requires a TCP endpoint with the same port")
        udp = cast(IReactorUDP, self._reactor).listenUDP(
            host.port, cast(DatagramProtocol, protocol), host.host, maxPacketSize=65536
        )
        log.info("{line}", line=f"{self._protocol} on {_where(udp)}")

    def _explain(self, failure: Failure) -> str:
        error = failure.value
        if isinstance(error, StartError):
            return str(error)
        if isinstance(error, CannotListenError):
            reason = getattr(error.socketError, "strerror", None) or str(error.socketError)
        elif isinstance(error, OSError):
            reason = error.strerror or os.strerror(error.errno or 0)
        else:
            failure.raiseException()
        return f"{self._protocol}: cannot listen on {self._description}: {reason}"


def _parse(reactor: object, description: str) -> IStreamServerEndpoint:
    """Return the endpoint of ``description``.

    A UNIX socket is open to the owner and the group unless the description has a mode; Twisted's
    default is everybody.

    Twisted requires the address family of a ``systemd:`` endpoint. It is read from the inherited
    socket instead.
    """
    if _UNIX.match(description) and not _MODE.search(description):
        description += ":mode=660"
    complete = not description.startswith("systemd:") or "domain=" in description
    endpoint = serverFromString(reactor, description + ("" if complete else ":domain=INET"))
    if not complete:
        with socket.socket(fileno=os.dup(endpoint.fileno)) as inherited:
            family = inherited.family
        endpoint = AdoptedStreamServerEndpoint(reactor, endpoint.fileno, family)
    return cast(IStreamServerEndpoint, endpoint)


def _set_options(listening: socket.socket) -> None:
    """Set options that the accepted sockets inherit."""
    # Writes are batched already.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A peer that vanished without a word is noticed after four minutes, not in two hours.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _use_reno_on_loopback(port: tcp.Port) -> None:
    """Use a congestion control that does not pace, if ``port`` listens on a loopback address.

    The system's default may pace output, as BBR does. Loopback cannot be congested.
    """
    if ip_address(port.getHost().host).is_loopback and hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):
            port.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _where(port: IListeningPort) -> str:
    host = port.getHost()
    if isinstance(host, IPv4Address):
        return f"{host.type.lower()} {host.host}:{host.port}"
    if isinstance(host, IPv6Address):
        return f"{host.type.lower()} [{host.host}]:{host.port}"
    if isinstance(host, UNIXAddress):
        return f"unix {os.fsdecode(host.name or b'')}"
    return str(host)
