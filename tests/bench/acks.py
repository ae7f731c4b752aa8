"""``python -m tests.bench.acks``: the latency of rheos acknowledgments at a fixed rate.

Many connections publish in turn, one message each. The latency of an acknowledgment starts when its
message was due. With the broker option ``--durability '*=sync'`` it includes the disk.
"""

from __future__ import annotations

import argparse
import os
import selectors
import shlex
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tests.bench import BenchError
from tests.bench.broker import Broker, twistd_broker
from tests.bench.generator import connect, tune
from tests.bench.wires import WIRES
from tests.bench.wires.rheos import ACK_SIZE

_SECOND = 1_000_000_000
# A delay at the end, in seconds, that shows that the generator did not keep up.
_LATE = 0.2
# Of messages that are not acknowledged at the end, in seconds.
_TIMEOUT = 10.0


class RateNotReached(BenchError):
    """The broker does not acknowledge as many messages a second."""


class Sized:
    """Counts acknowledgments of one size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rest = 0

    def __call__(self, data: bytes) -> int:
        """Return the number of acknowledgments that ``data`` completes."""
        count, self._rest = divmod(self._rest + len(data), self._size)
        return count


class Publisher:
    """One connection, and the times at which its unacknowledged messages were due."""

    def __init__(
        self, sock: socket.socket, message: bytes, answers: Callable[[bytes], int]
    ) -> None:
        self.sock = sock
        self.message = message
        self.due: deque[int] = deque()
        self._answers = answers

    def receive(self, latencies: list[int]) -> None:
        """Take acknowledgments and append their latencies in nanoseconds."""
        count = self._answers(self.sock.recv(65536))
        now = time.perf_counter_ns()
        for _ in range(count):
            latencies.append(now - self.due.popleft())


def measure(broker: Broker, connections: int, rate: float, seconds: float, size: int) -> list[int]:
    """Return the latency of each message after the first second, in nanoseconds."""
    wire = WIRES["rheos"]
    frame = wire.publication(0, size)
    message = frame.head + bytes(frame.size - len(frame.head))
    selector = selectors.DefaultSelector()
    publishers = []
    for number in range(connections):
        sock = connect(broker.address, wire.publisher_hello([0], f"acks-{number}"))
        tune(sock)
        while not wire.welcomed(sock.recv(4096, socket.MSG_PEEK)):
            pass
        sock.recv(4096)
        publishers.append(Publisher(sock, message, Sized(ACK_SIZE)))
        selector.register(sock, selectors.EVENT_READ, publishers[-1])
    return latencies_of(publishers, selector, rate, seconds)


def latencies_of(
    publishers: list[Publisher],
    selector: selectors.BaseSelector,
    rate: float,
    seconds: float,
) -> list[int]:
    """Publish in turn at ``rate`` and return the latencies; print a warning below that rate.

    Raises ``RateNotReached`` if acknowledgments are ten seconds behind.
    """
    connections = len(publishers)
    latencies: list[int] = []
    interval = _SECOND / rate
    start = time.perf_counter_ns()
    sent, warm, end = 0, int(rate), int(rate * (seconds + 1))
    last = start + int((seconds + 1 + _TIMEOUT) * _SECOND)
    while len(latencies) < end:
        now = time.perf_counter_ns()
        if now > last:
            raise RateNotReached(f"of {end:,} messages {len(latencies):,} were acknowledged")
        while sent < end and start + sent * interval <= now:
            publisher = publishers[sent % connections]
            publisher.due.append(int(start + sent * interval))
            publisher.sock.sendall(publisher.message)
            sent += 1
        # Polling, because a selector rounds a timeout up to a millisecond, the time of ten
        # messages.
        for key, _ in selector.select(0):
            key.data.receive(latencies)
    if time.perf_counter_ns() - start > (seconds + 1 + _LATE) * _SECOND:
        print("warning: the generator did not reach the rate", file=sys.stderr)
    return latencies[warm:]


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.acks", description=__doc__)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--rate", type=float, default=10_000.0, help="messages/s of all together")
    # Long enough for merges of blocks, which begin when blocks are five seconds old.
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--broker-options", type=shlex.split, default=[])
    options = parser.parse_args()
    twistd = Path(sys.executable).with_name("twistd")
    os.sched_setaffinity(0, {1})
    with twistd_broker(twistd, WIRES["rheos"], options.broker_options, 0) as broker:
        before = broker.cpu_seconds()
        began = time.monotonic()
        latencies = sorted(
            measure(broker, options.connections, options.rate, options.seconds, options.size)
        )
        used = broker.cpu_seconds() - before
        took = time.monotonic() - began
    shown = ", ".join(
        f"p{share * 100:g} {latencies[int(share * (len(latencies) - 1))] / 1e6:.1f} ms"
        for share in (0.5, 0.99, 0.999)
    )
    print(
        f"{len(latencies)} acknowledgments at {options.rate:.0f}/s from {options.connections} "
        f"connections: {shown}; broker {used / took:.0%} of a core"
    )


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(str(error))
