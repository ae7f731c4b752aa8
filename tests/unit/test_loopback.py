"""The congestion control of sockets between processes of one machine."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from unittest import SkipTest

from twisted.internet import reactor
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pubsub.client.asyncio_runtime import AsyncioRuntime
from pubsub.client.twisted_runtime import TwistedRuntime
from pubsub.wire.loopback import use_reno_on_loopback


def congestion_control(of: Any) -> bytes:
    found: bytes = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return found.rstrip(b"\0")


def choose_another(of: socket.socket) -> bytes:
    """Have ``of`` use what is not reno, and return its name."""
    available = "/proc/sys/net/ipv4/tcp_available_congestion_control"
    if not hasattr(socket, "TCP_CONGESTION"):
        raise SkipTest("TCP_CONGESTION is of Linux")
    with open(available, "rb") as file:
        others = [name for name in file.read().split() if name != b"reno"]
    if not others:
        raise SkipTest("the system has reno alone")
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, others[0])
    return others[0]


class ChoiceTests(SynchronousTestCase):
    def test_loopback_alone_has_reno(self) -> None:
        for host, is_loopback in (("127.0.0.1", True), ("::1", True), ("192.0.2.1", False)):
            with socket.socket() as sock:
                other = choose_another(sock)
                use_reno_on_loopback(sock, host)
                assert congestion_control(sock) == (b"reno" if is_loopback else other)


class Observer:
    """Takes the transport and calls ``done``."""

    def __init__(self, done: Any) -> None:
        self.made = done

    def received(self, data: bytes) -> None: ...

    def writable(self, writable: bool) -> None: ...

    def lost(self, why: str) -> None: ...


class ClientTests(TestCase):
    """The connections of clients"""

    def setUp(self) -> None:
        if not hasattr(socket, "TCP_CONGESTION"):
            raise SkipTest("TCP_CONGESTION is of Linux")
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.listening.close)
        self.port = self.listening.getsockname()[1]

    def test_asyncio(self) -> None:
        async def connect() -> bytes:
            made = asyncio.get_running_loop().create_future()
            AsyncioRuntime().connect("127.0.0.1", self.port, None, Observer(made.set_result))
            stream: Any = await made
            found = congestion_control(stream._transport.get_extra_info("socket"))
            stream.abort()
            return found

        assert asyncio.run(connect()) == b"reno"

    @inlineCallbacks
    def test_twisted(self) -> Any:
        made: Deferred[Any] = Deferred()
        TwistedRuntime(reactor).connect("127.0.0.1", self.port, None, Observer(made.callback))
        stream = yield made
        assert congestion_control(stream.transport.getHandle()) == b"reno"
        stream.abort()
