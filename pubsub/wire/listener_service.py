"""A listener's service: opens its endpoint, and a UDP port beside it if the factory serves UDP."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

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
    IReactorTime,
    IReactorUDP,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import DatagramProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.errors import ConfigurationError, StartError
from pubsub.interfaces import IDatagramSource
from pubsub.tuning import LOOPBACK_RENO, TUNED, Tuning
from pubsub.wire import proxy_protocol
from pubsub.wire.accept_errors import count_accept_errors, reserve_descriptors
from pubsub.wire.inherited_sockets import family_of, find_inherited, name_in
from pubsub.wire.light_transport import use_transports
from pubsub.wire.listen_errors import reason_of_listen_error, remedy_for_endpoint
from pubsub.wire.loopback import use_reno_on_loopback
from pubsub.wire.peer_address import host_of, place_text
from pubsub.wire.proxy_protocol import proxied, use_proxied_streams
from pubsub.wire.server_tls import ServerTls
from pubsub.wire.tls_factory import TlsFactory, endpoint_certificates, use_tls_streams

if TYPE_CHECKING:
    from cryptography import x509

    from pubsub.broker.memory_budget import MemoryBudget

log = Logger()
# Connections that the kernel completes before they are accepted. With Twisted's 50, SYNs are
# dropped when thousands of clients connect, each of which costs a client a second.
BACKLOG = 4096
KEEPALIVE = {"TCP_KEEPIDLE": 120, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 4}
"""TCP keepalive: the idle seconds before the first probe, the interval, and the number."""
_PROXIED = re.compile(r"haproxy:")
_UNIX = re.compile(r"unix:")
_SSL = re.compile(r"(haproxy:)?ssl:")
_ANY_PORT = re.compile(r"(haproxy:)?(tcp6?|ssl):(.*:)?(port=)?0(:|$)")
# The ports that the system is asked for until one is free for UDP, too.
_PORTS_TRIED = 20
# A colon after a backslash is part of the path.
_MODE = re.compile(r"(?<!\\):mode=")


class ListenerService(Service):
    """Serves ``factory`` at the endpoint ``description``.

    ``refuse`` is called with a reason and the client for each connection that cannot be accepted,
    and ``tls`` for each connection that is: it returns the settings of TLS, or None for plain
    streams. The buffers of TLS are charged to ``memory``. ``admit_handshake`` returns whether a
    client at an address may do a handshake of TLS now, and ``frame_seconds`` returns the seconds in
    which a record of TLS must arrive. ``spares_next`` returns whether the next connection may take
    a file descriptor that others may not. Raises ConfigurationError if the description cannot be
    parsed, and from startService StartError if the endpoint cannot be listened on.
    """

    def __init__(
        self,
        protocol: str,
        description: str,
        factory: IProtocolFactory,
        reactor: object,
        refuse: Callable[[str, str], object] = lambda reason, client: None,
        tuning: Tuning = TUNED,
        tls: Callable[[], ServerTls | None] = lambda: None,
        is_exposed: Callable[[str], bool] = lambda host: False,
        memory: MemoryBudget | None = None,
        admit_handshake: Callable[[str], bool] = lambda address: True,
        frame_seconds: Callable[[], float] = lambda: 0.0,
        spares_next: Callable[[], bool] = lambda: False,
    ) -> None:
        self._protocol = protocol
        self._description = description
        self._factory = factory
        self._reactor = reactor
        self._refuse = refuse
        self._tuning = tuning
        self._tls = tls
        self._is_exposed = is_exposed
        self._memory = memory
        self._admit_handshake = admit_handshake
        self._frame_seconds = frame_seconds
        self._spares_next = spares_next
        self._endpoint = self._parse()
        # Found now, as the sockets are handed to this process, and not to one that it forks.
        name = name_in(description)
        self._inherited_udp = None if name is None else find_inherited(name, socket.SOCK_DGRAM)
        self._ports: list[IListeningPort] = []

    def _parse(self) -> IStreamServerEndpoint:
        if self._description.startswith("haproxy:") and not proxy_protocol.PROXIES_ARE_KNOWN:
            raise ConfigurationError(
                f"{self._protocol}: haproxy: is not possible with this version of Twisted; "
                "install a version that the broker is tested with"
            )
        try:
            return _parse(self._reactor, self._description)
        except (ValueError, TypeError, LookupError, OSError, ImportError) as error:
            hint = remedy_for_endpoint(self._description)
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
    def endpoint_certificates(self) -> list[x509.Certificate]:
        """The certificates that the endpoint string names, and those up to the authority."""
        return endpoint_certificates(self._endpoint)

    @property
    def factory(self) -> IProtocolFactory:
        """The factory of the connections."""
        return self._factory

    @property
    def addresses(self) -> list[IAddress]:
        """The addresses it listens on, with the port that was chosen for port 0."""
        return [port.getHost() for port in self._ports]

    @property
    def is_tls(self) -> bool:
        """Whether new connections are served over TLS."""
        return self._tls() is not None or _SSL.match(self._description) is not None

    def privilegedStartService(self) -> None:
        """Listen, before privileges are dropped."""
        clock = cast("IReactorTime", self._reactor)
        factory = TlsFactory(
            self._tls,
            self._factory,
            self._refuse,
            clock,
            self._memory,
            self._admit_handshake,
            self._frame_seconds,
        )
        for _ in range(_PORTS_TRIED):
            failures: list[Failure] = []
            listening = self._endpoint.listen(factory)
            listening.addCallback(self._listening).addErrback(failures.append)
            if not failures:
                return
            if not self._has_taken_udp_port(failures[0]):
                break
            # It is open until the reactor runs, so the system chooses another one.
            self._ports.pop().stopListening()
        _remove_lock(failures[0].value)
        raise StartError(self._explain(failures[0]))

    def _has_taken_udp_port(self, failure: Failure) -> bool:
        """Return whether the system has chosen a port that is free for TCP and not for UDP."""
        error = failure.value
        return (
            bool(self._ports and _ANY_PORT.match(self._description))
            and isinstance(error, CannotListenError)
            and isinstance(error.socketError, OSError)
            and error.socketError.errno == errno.EADDRINUSE
        )

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
        self._check_exposure(port)
        self._ports.append(port)
        if isinstance(port, tcp.Port):
            count_accept_errors(port, self._refuse)
            reserve_descriptors(port, self._refuse, self._spares_next)
            use_proxied_streams(port.factory, self._refuse, self._memory)
            use_tls_streams(
                port.factory,
                self._refuse,
                self._memory,
                self._admit_handshake,
                self._frame_seconds,
            )
        if type(port) is tcp.Port:
            use_transports(port, self._tuning)
            port.socket.listen(BACKLOG)
            _set_options(port.socket)
            if LOOPBACK_RENO in self._tuning:
                use_reno_on_loopback(port.socket, port.getHost().host)
        udp = self._listen_udp(port) if IDatagramSource.providedBy(self._factory) else None
        self._log_listening(_where(port, self.is_tls))
        if udp is not None:
            self._log_listening(_where(udp))

    def _check_exposure(self, port: IListeningPort) -> None:
        """Raise StartError if ``port`` would admit anonymous clients of other machines.

        Behind a proxy each client has the address that the proxy sends.
        """
        if _PROXIED.match(self._description) or not self._is_exposed(host_of(port.getHost())):
            return
        where = _where(port, self.is_tls)
        port.stopListening()
        raise StartError(
            f"{self._protocol}: {where} would admit anonymous clients of other machines; set "
            "allow-anonymous on to admit them or off to refuse them, or listen on 127.0.0.1"
        )

    def _listen_udp(self, port: IListeningPort) -> IListeningPort | None:
        """Open the UDP port. Its protocol closes it when the broker drains its clients."""
        protocol = cast("IDatagramSource", self._factory).datagram_protocol()
        if protocol is None:
            return None
        if self._tls() is not None:
            raise StartError(
                f"{self._protocol}: UDP is not encrypted; turn UDP off, or serve it by a listener "
                "without tls-cert"
            )
        inherited = self._inherited_udp
        if inherited is not None:
            # The service manager leaves it blocking. Streams are dealt with by Twisted's endpoint,
            # whose interface does not have the method for datagrams.
            os.set_blocking(inherited, False)
            adopted: IListeningPort = cast("Any", self._reactor).adoptDatagramPort(
                inherited, family_of(inherited), protocol, maxPacketSize=65536
            )
            return adopted
        host = port.getHost()
        if not isinstance(host, IPv4Address | IPv6Address):
            raise StartError(f"{self._protocol}: UDP requires a TCP endpoint with the same port")
        return cast("IReactorUDP", self._reactor).listenUDP(
            host.port, cast("DatagramProtocol", protocol), host.host, maxPacketSize=65536
        )

    def _log_listening(self, where: str) -> None:
        log.info("{protocol} on {where}", protocol=self._protocol, where=where, unlimited=True)

    def _explain(self, failure: Failure) -> str:
        error = failure.value
        if isinstance(error, StartError):
            return str(error)
        reason = reason_of_listen_error(self._description, error) if error else None
        if reason is None:
            failure.raiseException()
        return f"{self._protocol}: cannot listen on {self._description}: {reason}"


def _remove_lock(error: BaseException | None) -> None:
    """Remove the lock file of a UNIX socket that could not be bound: Twisted leaves it.

    Without an error of the system, the lock could not be acquired and belongs to another listener.
    """
    if (
        isinstance(error, CannotListenError)
        and isinstance(error.port, bytes)
        and isinstance(error.socketError, OSError)
    ):
        with suppress(OSError):
            os.unlink(error.port + b".lock")


def _parse(reactor: object, description: str) -> IStreamServerEndpoint:
    """Return the endpoint of ``description``.

    An inherited socket is found by its name among those for streams.

    A UNIX socket is open to the owner and the group unless the description has a mode; Twisted's
    default is everybody.

    Twisted requires the address family of a ``systemd:`` endpoint. It is read from the inherited
    socket instead.
    """
    if _PROXIED.match(description):
        return proxied(_parse(reactor, _PROXIED.sub("", description, count=1)))
    if _UNIX.match(description) and not _MODE.search(description):
        description += ":mode=660"
    name = name_in(description)
    found = None if name is None else find_inherited(name, socket.SOCK_STREAM)
    if found is not None:
        return AdoptedStreamServerEndpoint(reactor, found, family_of(found))
    complete = not description.startswith("systemd:") or "domain=" in description
    endpoint = serverFromString(reactor, description + ("" if complete else ":domain=INET"))
    if not complete:
        with socket.socket(fileno=os.dup(endpoint.fileno)) as inherited:
            family = inherited.family
        endpoint = AdoptedStreamServerEndpoint(reactor, endpoint.fileno, family)
    return cast("IStreamServerEndpoint", endpoint)


def _set_options(listening: socket.socket) -> None:
    """Set options that the accepted sockets inherit."""
    # Writes are batched already.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A peer that has vanished without closing is noticed after four minutes, not two hours.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _where(port: IListeningPort, is_tls: bool = False) -> str:
    host = port.getHost()
    if isinstance(host, IPv4Address | IPv6Address):
        return f"{'tls' if is_tls else host.type.lower()} {place_text(host.host, host.port)}"
    if isinstance(host, UNIXAddress):
        return f"{'tls ' if is_tls else ''}unix {os.fsdecode(host.name or b'')}"
    return str(host)
