"""``AsyncioRuntime``: its transports, over loopback."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.client.asyncio_runtime import AsyncioRuntime
from pubsub.client.runtime import Transport

TIMEOUT = 30.0
# More than the buffers of both sockets hold.
SENT = bytes(8 * 1024**2)


class _Opened:
    """An observer."""

    def __init__(self) -> None:
        self.transport: asyncio.Future[Transport] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()

    def made(self, transport: Transport) -> None:
        self.transport.set_result(transport)

    def received(self, data: bytes) -> None:
        raise AssertionError

    def writable(self, writable: bool) -> None:
        pass

    def lost(self, why: str) -> None:
        self.ended.set()


async def abandon(port: int) -> None:
    """Send what the other end does not read, and give the connection up."""
    opened = _Opened()
    AsyncioRuntime().connect("127.0.0.1", port, None, opened)
    transport = await opened.transport
    transport.write(SENT)
    transport.abort()
    await opened.ended.wait()


class AbortTests(SynchronousTestCase):
    """A connection that is given up"""

    def test_bytes_that_have_not_arrived_never_do(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            asyncio.run(asyncio.wait_for(abandon(server.getsockname()[1]), TIMEOUT))
            peer, _ = server.accept()
            with peer, pytest.raises(ConnectionResetError):
                list(iter(partial(peer.recv, 65536), b""))
