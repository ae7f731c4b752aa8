"""The time of a broker for one message, or one batch, without the trick that is named.

``python -m tests.bench.lockstep TRICK`` prints nanoseconds for a delivery as JSON, by load. Broker
and clients are in this process. The clients send, the reactor runs one tick after the other until
everything has been delivered, and only the ticks are timed. So nothing is ever in flight that could
share a tick with the next message, and the median of many messages does not depend on what else the
machine does.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, cast

from twisted.internet import reactor as _reactor
from twisted.internet.tcp import Port

from pubsub import tuning
from pubsub.server import tap
from tests.bench.wires.cafe import ACK_SIZE, CafeWire

reactor = cast(Any, _reactor)
_WIRE = CafeWire()
_SOCKET_BYTES = 4 << 20
# Publishers, subscribers, bytes of a payload, messages in a send, repetitions.
LOADS = {
    "1-1, one at a time": (1, 1, 64, 1, 4000),
    "50-1, one at a time": (50, 1, 64, 1, 400),
    "1-10, one at a time": (1, 10, 64, 1, 2000),
    "1-1, 64 B in batches": (1, 1, 64, 900, 1500),
    "1-1, 1 KiB in batches": (1, 1, 1024, 60, 1500),
    "1-1, 64 KiB": (1, 1, 65_000, 1, 1500),
    "1-1, 1 MiB": (1, 1, _WIRE.max_payload, 1, 400),
}


def start(without: str, more: Sequence[str] = ()) -> int:
    """Start a broker without this trick, with ``more`` options; return its port."""
    tuning.TRICKS = tuple(trick for trick in tuning.TRICKS if trick.name != without)
    options = tap.Options()
    setting = "off" if without == "all" else "on"
    options.parseOptions(
        [
            "--listen=cafe=tcp:0:interface=127.0.0.1",
            "--store=memory",
            "--durability=*=none",
            f"--tuning={setting}",
            *more,
        ]
    )
    tap.makeService(options).startService()
    reactor.startRunning(installSignalHandlers=False)
    (port,) = (one for one in reactor.getReaders() if isinstance(one, Port))
    return int(port.getHost().port)


def tick() -> int:
    """Run one tick; return its time in ns."""
    begin = time.perf_counter_ns()
    reactor.runUntilCurrent()
    reactor.doIteration(0)
    return time.perf_counter_ns() - begin


class Client:
    """A connection that never blocks."""

    def __init__(self, port: int, hello: bytes) -> None:
        self._socket = socket.socket()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._buffer = bytearray(1 << 20)
        self._unsent = memoryview(hello)
        self.received = 0

    def send(self, data: bytes) -> None:
        """Send ``data`` with this and later calls of ``pump``."""
        self._unsent = memoryview(data)

    def pump(self) -> None:
        """Send and receive as much as possible."""
        try:
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            self.received += self._socket.recv_into(self._buffer)
        except BlockingIOError:
            pass

    def fileno(self) -> int:
        """Return the descriptor, to wait for input."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def until(clients: list[Client], amounts: list[int]) -> int:
    """Run ticks until each client has received so much; return their time in ns."""
    elapsed = 0
    for client in clients:
        client.pump()
    while any(c.received < n for c, n in zip(clients, amounts, strict=True)):
        elapsed += tick()
        for client in clients:
            client.pump()
    return elapsed


def measure(port: int, load: tuple[int, int, int, int, int]) -> float:
    """Return the ns for a delivery, the median of the repetitions."""
    publishers, subscribers, size, count, repetitions = load
    senders = [Client(port, _WIRE.publisher_hello([1], f"p{n}")) for n in range(publishers)]
    receivers = [Client(port, _WIRE.subscriber_hello([1], f"s{n}")) for n in range(subscribers)]
    clients = senders + receivers
    until(clients, [ACK_SIZE] * len(clients))
    data = (_WIRE.publication(1, size).before + bytes(size)) * count
    amount = _WIRE.delivery(1, size).size * count * publishers
    times = []
    for number in range(1, repetitions + 1):
        for sender in senders:
            sender.send(data)
        due = [ACK_SIZE + number * amount] * subscribers
        times.append(until(clients, [ACK_SIZE] * publishers + due))
    for client in clients:
        client.close()
    for _ in range(5):
        tick()
    return median(times[repetitions // 10 :]) / (count * publishers * subscribers)


def results(without: str) -> Iterator[tuple[str, float]]:
    """Return the ns for a delivery of each load."""
    port = start(without)
    for name, load in LOADS.items():
        yield name, measure(port, load)


if __name__ == "__main__":
    print(json.dumps(dict(results(sys.argv[1]))))
