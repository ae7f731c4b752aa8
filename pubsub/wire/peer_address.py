"""The address of a client as text."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Network, ip_address
from sys import intern

from twisted.internet.address import IPv4Address, IPv6Address

UNIX = "unix"
"""Stands for every client on a UNIX socket."""
_INTERNET = IPv4Address | IPv6Address
_MAPPED = "::ffff:"


def is_local(peer: object) -> bool:
    """Return whether the peer is on this machine: at a loopback address or a UNIX socket."""
    host = host_of(peer)
    return host == UNIX or _is_loopback(host)


@lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool:
    # Remembered, as each request over HTTP asks several times.
    return ip_address(host).is_loopback


def host_of(address: object) -> str:
    """The IP address, as one string object for all connections of a host."""
    return intern(plain_host(address.host)) if isinstance(address, _INTERNET) else UNIX


def address_text(address: object) -> str:
    """``HOST:PORT``, or ``unix``."""
    if isinstance(address, _INTERNET):
        return place_text(plain_host(address.host), address.port)
    return UNIX


def place_text(host: str, port: int) -> str:
    """``HOST:PORT``; an IPv6 address is in brackets, as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain_host(host: str) -> str:
    """Return an address of IPv4 as such; a socket for both versions shows it as one of IPv6."""
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host


def network_of(host: str) -> str:
    """The text that stands for one client among others: an IPv4 address, or 64 bits of an IPv6.

    The owner of an IPv6 address usually has 2**64 of them.
    """
    if ":" not in host:
        return host
    return intern(str(IPv6Network((host.partition("%")[0], 64), strict=False)))
