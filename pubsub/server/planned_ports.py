"""A reactor whose ports are only noted, so that a check finds what the start would refuse."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import Clock
from zope.interface import implementer

# Bytes of the path of a UNIX socket, without the NUL at its end.
_LONGEST_PATH = 107


@implementer(IListeningPort)
@dataclass(frozen=True, slots=True)
class _PlannedPort:
    """A port that nobody listens on."""

    address: IPv4Address | IPv6Address | UNIXAddress

    def startListening(self) -> None:
        """It does not listen."""

    def stopListening(self) -> None:
        """It did not listen."""

    def getHost(self) -> IPv4Address | IPv6Address | UNIXAddress:
        """The address that it is planned for."""
        return self.address


class PlannedPorts(Clock):
    """Notes the ports that are requested, and refuses an address that was requested before.

    Whether another process has it is not looked at. Port 0 is always another one.
    """

    def __init__(self) -> None:
        super().__init__()
        # By kind and port, the addresses that are taken.
        self._taken: dict[tuple[str, int], list[str]] = {}

    def listenTCP(
        self, port: int, factory: object, backlog: int = 50, interface: str = ""
    ) -> _PlannedPort:
        """Note a port of TCP; raises CannotListenError."""
        return self._inet("TCP", port, interface)

    def listenSSL(
        self,
        port: int,
        factory: object,
        contextFactory: object,
        backlog: int = 50,
        interface: str = "",
    ) -> _PlannedPort:
        """Note a port of TCP, with TLS; raises CannotListenError."""
        return self._inet("TCP", port, interface)

    def listenUDP(
        self, port: int, protocol: object, interface: str = "", maxPacketSize: int = 8192
    ) -> _PlannedPort:
        """Note a port of UDP; raises CannotListenError."""
        return self._inet("UDP", port, interface)

    def listenUNIX(self, address: str, factory: object, **options: Any) -> _PlannedPort:
        """Note a UNIX socket; raises CannotListenError."""
        if len(os.fsencode(address)) > _LONGEST_PATH:
            raise CannotListenError(address, 0, OSError("AF_UNIX path too long"))
        self._take(address, 0, "unix", os.path.realpath(address))
        return _PlannedPort(UNIXAddress(address))

    def _inet(self, kind: Any, port: int, interface: str) -> _PlannedPort:
        host = _numeric(interface, port)
        if port:
            self._take(interface, port, kind, host)
        address = IPv6Address if ":" in host else IPv4Address
        return _PlannedPort(address(kind, host, port))

    def _take(self, interface: str, port: int, kind: str, place: str) -> None:
        taken = self._taken.setdefault((kind, port), [])
        if any(_overlap(place, other) for other in taken):
            error = OSError(errno.EADDRINUSE, "another listener of the file has this address")
            raise CannotListenError(interface, port, error)
        taken.append(place)


def _overlap(one: str, other: str) -> bool:
    """Return whether two places have an address in common.

    ``0.0.0.0`` has all addresses of IPv4, and ``::`` those too.
    """
    if one == other or "::" in (one, other):
        return True
    return "0.0.0.0" in (one, other) and ":" not in one + other


def _numeric(interface: str, port: int) -> str:
    """Return the address of ``interface``, which may be a name; raises CannotListenError."""
    if not interface:
        return "0.0.0.0"
    try:
        return str(ip_address(interface.partition("%")[0]))
    except ValueError:
        pass
    try:
        return socket.gethostbyname(interface)
    except OSError as error:
        raise CannotListenError(interface, port, error) from None
