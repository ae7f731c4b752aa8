"""The time of a broker for one message, or one batch, without the trick that is named.

``python -m tests.bench.lockstep TRICK`` measures whatever ``turns.py`` asks for: nanoseconds for a
delivery, of one load. Broker and clients are in this process. The clients send, the reactor runs
one tick after the other until everything has been delivered, and only the ticks are timed. So
nothing is ever in flight that could share a tick with the next message, and the median of many
messages does not depend on what else the machine does.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, cast

from twisted.internet import reactor as _reactor
from twisted.internet.tcp import Port

from pubsub import tuning
from pubsub.server import tap
from tests.bench.turns import LOADS
from tests.bench.wires.cafe import ACK_SIZE, CafeWire

reactor = cast(Any, _reactor)
_WIRE = CafeWire()
_SOCKET_BYTES = 4 << 20


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


class Measurement:
    """The clients of one load, which is that of ``LOADS``."""

    def __init__(self, port: int, name: str) -> None:
        publishers, subscribers, size, count, _ = LOADS[name]
        self.name = name
        self._senders = [
            Client(port, _WIRE.publisher_hello([1], f"p{n}")) for n in range(publishers)
        ]
        receivers = [Client(port, _WIRE.subscriber_hello([1], f"s{n}")) for n in range(subscribers)]
        self._clients = self._senders + receivers
        until(self._clients, [ACK_SIZE] * len(self._clients))
        self._data = (_WIRE.publication(1, size).before + bytes(size)) * count
        self._deliveries = count * publishers * subscribers
        self._amount = _WIRE.delivery(1, size).size * count * publishers
        self._sent = 0

    def run(self, repetitions: int) -> float:
        """Return the ns for a delivery, the median of so many repetitions."""
        times = []
        for _ in range(repetitions):
            self._sent += self._amount
            for sender in self._senders:
                sender.send(self._data)
            receivers = len(self._clients) - len(self._senders)
            due = [ACK_SIZE] * len(self._senders) + [ACK_SIZE + self._sent] * receivers
            times.append(until(self._clients, due))
        return median(times) / self._deliveries

    def close(self) -> None:
        """End the connections."""
        for client in self._clients:
            client.close()
        for _ in range(5):
            tick()


def serve(without: str) -> None:
    """Measure what each line of the input names, and print the result, until the input ends.

    A line has the number of repetitions, and the load. The clients of a load remain until another
    one is named.
    """
    port = start(without)
    present: Measurement | None = None
    for line in sys.stdin:
        repetitions, name = line.rstrip("\n").split(" ", 1)
        if present is None or present.name != name:
            if present is not None:
                present.close()
            present = Measurement(port, name)
        print(present.run(int(repetitions)), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
