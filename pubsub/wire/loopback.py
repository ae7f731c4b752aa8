"""TCP between processes of one machine. Knows no event loop."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address


def use_reno_on_loopback(sock: socket.socket, host: str) -> None:
    """Use a congestion control that does not pace, if ``host`` is a loopback address.

    The system's default may pace output, as BBR does. Loopback cannot be congested.
    """
    if ip_address(host).is_loopback and hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
