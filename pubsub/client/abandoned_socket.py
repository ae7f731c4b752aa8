"""The end of a connection whose peer does not answer. Knows no event loop."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

# On, with no seconds.
_NO_LINGER = struct.pack("ii", 1, 0)


def drop_unsent(sock: socket.socket) -> None:
    """Have the bytes dropped that the peer's system has not taken when ``sock`` is closed.

    Otherwise the system goes on sending them for minutes. Once the network is back they would
    arrive behind those of a newer connection.
    """
    # It may be closed already.
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
