"""Idle connections: the cost of one more subscriber that receives nothing."""

from __future__ import annotations

import resource
import socket
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass

from tests.bench import BenchError
from tests.bench.broker import Broker
from tests.bench.generator import Address, await_welcome, connect
from tests.bench.wires import Wire, traits_of

WARM_UP_CONNECTIONS = 12
# Below Twisted's backlog of 50. A connection beyond the backlog waits a second for a second SYN, so
# the benchmark would measure TCP.
IN_FLIGHT = 32
IDLE_SECONDS = 2.0
SPARE_FILES = 100


@dataclass(frozen=True)
class Idle:
    """`bytes_per_connection` is resident memory beyond that after the first dozen connections."""

    connections: int
    base_bytes: int
    bytes_per_connection: float
    accepts_per_second: float
    accepts_per_cpu_second: float
    idle_cpu_share: float
    """Share of a core while all connections are idle."""


def measure_idle(broker: Broker, wire: Wire, connections: int) -> Idle:
    """Open `connections` subscribers of one topic and leave them idle. Raises BenchError."""
    with ExitStack() as stack:
        _connect(stack, broker.address, wire, range(WARM_UP_CONNECTIONS))
        base = broker.resident_bytes()
        start, start_cpu = time.perf_counter(), broker.cpu_seconds()
        numbers = range(WARM_UP_CONNECTIONS, WARM_UP_CONNECTIONS + connections)
        sockets = _connect(stack, broker.address, wire, numbers)
        wall, cpu = time.perf_counter() - start, broker.cpu_seconds() - start_cpu
        time.sleep(IDLE_SECONDS)
        idle_cpu = broker.cpu_seconds() - start_cpu - cpu
        for sock in sockets:
            _check_open(sock, traits_of(wire).late_frame)
        return Idle(
            connections=connections,
            base_bytes=base,
            bytes_per_connection=(broker.resident_bytes() - base) / connections,
            accepts_per_second=connections / wall,
            accepts_per_cpu_second=connections / cpu,
            idle_cpu_share=idle_cpu / IDLE_SECONDS,
        )


def _connect(stack: ExitStack, address: Address, wire: Wire, numbers: range) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    waiting: deque[socket.socket] = deque()
    for number in numbers:
        hello = wire.subscriber_hello([0], f"bench-idle-{number}")
        sock = stack.enter_context(connect(address, hello, traits_of(wire).greeting))
        sockets.append(sock)
        waiting.append(sock)
        if len(waiting) == IN_FLIGHT:
            await_welcome(waiting.popleft(), wire)
    for sock in waiting:
        await_welcome(sock, wire)
    return sockets


def _check_open(sock: socket.socket, late_frame: bytes) -> None:
    sock.setblocking(False)
    try:
        data = sock.recv(32)
    except BlockingIOError:
        return
    if not data or data != late_frame:
        raise BenchError(f"an idle subscriber received {data.hex(' ') or 'end of stream'}")


def raise_file_limit(connections: int) -> None:
    """Allow this process and the broker to open that many connections. Raises BenchError."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < connections + SPARE_FILES:
        raise BenchError(f"{connections} connections need more than the limit of {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
