"""Brokers that share topics and keep their ports across restarts."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import zmq

from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen

# Shorter than the defaults, so that tests do not wait for seconds.
QUICK = ("--spot-sync=1", "--spot-heartbeat=1")


def _own_ports() -> Iterator[int]:
    """Yield the ports below the ephemeral ones, in a random order."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(ephemeral // 2, ephemeral)
    return itertools.cycle(random.sample(ports, len(ports)))


_ports = _own_ports()
# Sockets whose names reserve the ports that this process has been given, until it ends.
_reserved: list[socket.socket] = []


def free_port() -> int:
    """Return a free port outside the range of ephemeral ports.

    Until the test listens on it, and while a server of the test is away, no other test gets it, not
    even in another process of pytest, or in one of another checkout.
    """
    while True:
        port = next(_ports)
        name = socket.socket(socket.AF_UNIX)
        try:
            # Sockets with abstract names share nothing but the network namespace, as ports do.
            name.bind(f"\0pubsub-test-port-{port}")
            with socket.create_server((HOST, port)):
                _reserved.append(name)
                return port
        except OSError:
            name.close()


class Member:
    """A broker of a cluster, with its listeners and the addresses of the others."""

    def __init__(
        self,
        start: Start,
        host: str,
        port: int,
        peers: Sequence[str],
        options: Sequence[str] = (),
        before: Sequence[str] = (),
    ) -> None:
        self.host = host
        self.endpoint = f"tcp://{host}:{port}"
        self._start = start
        self._before = before
        self._options = [
            f"--listen=spot=tcp:{port}:interface={host}",
            # Some of them have a network of their own.
            "--allow-anonymous",
            *listen("cafe", "nsd"),
            *QUICK,
            *(f"--peer={peer}" for peer in peers),
            *options,
        ]
        self.broker = self.up()

    def up(self) -> Broker:
        """Start or restart it."""
        self.broker = self._start(*self._options, before=self._before)
        return self.broker

    def kill(self) -> None:
        """Kill it."""
        self.broker.kill()

    def saw(self, line: str, count: int = 1) -> None:
        """Wait for a line of its output."""
        self.broker.wait_line(line, count)


def mesh(start: Start, size: int = 3, *options: str) -> list[Member]:
    """Return connected brokers that are all peers of each other."""
    ports = [free_port() for _ in range(size)]
    endpoints = [f"tcp://{HOST}:{port}" for port in ports]
    members = [
        Member(start, HOST, port, [e for e in endpoints if e != f"tcp://{HOST}:{port}"], options)
        for port in ports
    ]
    for member in members:
        member.saw("is connected$", size - 1)
    return members


class Socket:
    """A pyzmq socket whose calls time out after TIMEOUT."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.zmq = socket
        socket.linger = 0
        socket.rcvtimeo = socket.sndtimeo = int(TIMEOUT * 1000)

    def send(self, *frames: bytes) -> None:
        self.zmq.send_multipart(frames)

    def receive(self) -> list[bytes]:
        return self.zmq.recv_multipart()

    def nothing(self, milliseconds: int = 300) -> bool:
        """Return whether nothing arrives in this time."""
        return not self.zmq.poll(milliseconds)

    def query(self) -> list[bytes]:
        """Return the topics that its broker hosts. The broker has then handled all input before."""
        self.send(b"", b"\x04")
        while True:
            frames = self.receive()
            if frames[:2] == [b"", b"\x05"]:
                assert int.from_bytes(frames[2], "little") == len(frames) - 3
                return frames[3:]
            raise AssertionError(frames)


Open = Callable[[int, str], Socket]


@contextmanager
def sockets() -> Iterator[Open]:
    """Yield a function that opens a socket of a type and connects it to an endpoint."""
    opened: list[Socket] = []
    with zmq.Context() as context:

        def connect(kind: int, endpoint: str) -> Socket:
            made = Socket(context.socket(kind))
            opened.append(made)
            made.zmq.connect(endpoint)
            return made

        try:
            yield connect
        finally:
            for each in opened:
                each.zmq.close()


def subscribe(dealer: Socket, topic: bytes) -> Socket:
    """Subscribe a DEALER to a topic and wait until the subscription is in effect."""
    dealer.send(b"", b"\x02", topic)
    dealer.query()
    return dealer
