"""The address of a client as text."""

from __future__ import annotations

from ipaddress import IPv6Network, ip_address
from sys import intern

from twisted.internet.address import IPv4Address, IPv6Address

UNIX = "unix"
"""Stands for every client on a UNIX socket."""


def is_local(peer: object) -> bool:
    """Return whether the peer is on this machine: at a loopback address or a UNIX socket."""
    host = getattr(peer, "host", None)
    return host is None or ip_address(host).is_loopback


def host_of(address: object) -> str:
    """The IP address, as one string object for all connections of a host."""
    return intern(address.host) if isinstance(address, IPv4Address | IPv6Address) else UNIX


def address_text(address: object) -> str:
    """``HOST:PORT``, or ``unix``."""
    if isinstance(address, IPv4Address | IPv6Address):
        return f"{address.host}:{address.port}"
    return UNIX


def network_of(host: str) -> str:
    """The text that stands for one client among others: an IPv4 address, or 64 bits of an IPv6.

    The owner of an IPv6 address usually has 2**64 of them.
    """
    if ":" not in host:
        return host
    return str(IPv6Network((host.partition("%")[0], 64), strict=False))
