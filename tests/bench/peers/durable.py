"""Storage on disk, beside Redis' append-only file and NATS' JetStream.

The measurements: storing from one connection and from fifty, as fast as acknowledgments arrive; the
latency of an acknowledgment at 10,000 a second; and reading all of it again.
"""

from __future__ import annotations

import argparse
import selectors
import shutil
import tempfile
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from tests.bench import BenchError
from tests.bench.acks import Publisher, latencies_of
from tests.bench.broker import Broker, twistd_broker
from tests.bench.generator import HANDSHAKE_SECONDS, tune
from tests.bench.measure import no_collection
from tests.bench.peers.contenders import BROKER_CORE, Contender
from tests.bench.peers.docs import millions, table
from tests.bench.peers.logs import SIZE, Log, Used, contenders
from tests.bench.peers.rounds import Results, take_turns
from tests.bench.plan import Topology, make_plan
from tests.bench.throughput import measure_throughput
from tests.bench.wires import WIRES

BATCH = 64
# Unacknowledged messages of one connection, and of each of fifty.
ALONE, TOGETHER = 64 * 64, 2 * 64
CONNECTIONS = 50
RATE = 10_000.0


@dataclass(frozen=True)
class Stored:
    """Rates are messages a second, of the clock and of the server's processor time."""

    alone: float
    alone_cpu: float
    together: float
    together_cpu: float
    p50: float
    p99: float
    read: float
    read_cpu: float


class Loop:
    """Connections that each store as many messages as their window allows."""

    def __init__(self, broker: Broker, log: Log, connections: int, window: int) -> None:
        self._broker = broker
        self._batches = [log.message(number) * BATCH for number in range(connections)]
        self._window = window
        self._socks = [log.prepare(broker, number) for number in range(connections)]
        self._answers = [log.answers() for _ in self._socks]
        self._waiting = [0] * connections
        self._left = [memoryview(b"")] * connections
        self.stored = 0
        for sock in self._socks:
            tune(sock)
            sock.setblocking(False)

    def run(self, seconds: float) -> tuple[float, float]:
        """Return the acknowledged messages a second, and per CPU second of the server."""
        self._turn(0.5)
        before = self.stored
        with Used(self._broker) as used:
            self._turn(seconds)
        count = self.stored - before
        end = time.monotonic() + HANDSHAKE_SECONDS
        while any(self._waiting):
            self._sweep(False)
            if time.monotonic() > end:
                raise BenchError(f"{sum(self._waiting)} messages were not acknowledged")
        for sock in self._socks:
            sock.close()
        return count / used.seconds, count / used.cpu

    def _turn(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._sweep(True)

    def _sweep(self, more: bool) -> None:
        for index, sock in enumerate(self._socks):
            left = self._left[index]
            try:
                if not left and more and self._waiting[index] + BATCH <= self._window:
                    left = memoryview(self._batches[index])
                    self._waiting[index] += BATCH
                if left:
                    self._left[index] = left[sock.send(left) :]
            except BlockingIOError:
                self._left[index] = left
            try:
                count = self._answers[index](sock.recv(1 << 20))
            except BlockingIOError:
                continue
            self._waiting[index] -= count
            self.stored += count


def _latencies(broker: Broker, log: Log, seconds: float) -> list[int]:
    selector = selectors.DefaultSelector()
    publishers = []
    for number in range(CONNECTIONS):
        sock = log.prepare(broker, number)
        tune(sock)
        publishers.append(Publisher(sock, log.message(number), log.answers()))
        selector.register(sock, selectors.EVENT_READ, publishers[-1])
    return sorted(latencies_of(publishers, selector, RATE, seconds))


def measure(log: Log, seconds: float, broker: Broker) -> Stored:
    """Make all measurements of one server. Raises BenchError."""
    with no_collection():
        alone = Loop(broker, log, 1, ALONE)
        first = alone.run(seconds)
        together = Loop(broker, log, CONNECTIONS, TOGETHER)
        second = together.run(seconds)
        latencies = _latencies(broker, log, seconds)
        stored = alone.stored + together.stored + int(RATE * (seconds + 1))
        if log.read is None:
            raise BenchError("nothing reads it")
        count, wall, cpu = log.read(broker, stored)
    if count != stored:
        raise BenchError(f"{count} of {stored} acknowledged messages were read again")
    p50, p99 = (latencies[int(share * (len(latencies) - 1))] / 1e6 for share in (0.5, 0.99))
    return Stored(*first, *second, p50, p99, count / wall, count / cpu)


def run(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the table, and the errors."""
    with tempfile.TemporaryDirectory(prefix="bench-durable-") as directory:
        rows = contenders(options.twistd, Path(directory))
        logs = {contender.name: log for contender, log in rows}

        def one(broker: Broker, contender: Contender, column: Hashable) -> Stored:
            return measure(logs[contender.name], options.seconds, broker)

        wanted = tuple(options.only) or ""
        every = [contender for contender, _ in rows if contender.name.startswith(wanted)]
        results = take_turns(every, ["durable"], options.rounds, one)
        text = durable_table(results, every)
        if not options.only:
            text += f"\n\n{_live(options, Path(directory))}"
    return text, results.failures


def _live(options: argparse.Namespace, directory: Path) -> str:
    """Measure cafe with storage and live delivery."""
    path = directory / "live"
    rates = []
    for _ in range(options.rounds):
        shutil.rmtree(path, ignore_errors=True)
        command_line = [f"--store=log:{path}"]
        with twistd_broker(options.twistd, WIRES["cafe"], command_line, BROKER_CORE) as broker:
            plan = make_plan(WIRES["cafe"], Topology(1, 1), SIZE)
            result = measure_throughput(broker, WIRES["cafe"], plan, options.seconds)
        usage = result.usage
        rates.append((usage.per_cpu_second, usage.deliveries / usage.wall_seconds))
    cpu, wall = sorted(rates)[len(rates) // 2]
    return (
        f"cafe, one publisher, one subscriber, {SIZE} bytes, stored and delivered live: "
        f"{millions(wall)} million messages a second, {millions(cpu)} million a CPU second."
    )


def durable_table(results: Results[Stored], rows: Sequence[Contender]) -> str:
    """Return millions a second, with those of a CPU second in brackets."""

    def middle(name: str, value: str) -> float:
        return results.median(name, "durable", attrgetter(value)) or 0.0

    def rates(name: str, value: str) -> str:
        return f"{millions(middle(name, value))} ({millions(middle(name, value + '_cpu'))})"

    lines = [
        [
            name,
            rates(name, "alone"),
            rates(name, "together"),
            f"{middle(name, 'p50'):.2f}",
            f"{middle(name, 'p99'):.2f}",
            rates(name, "read"),
        ]
        for name in results.names(rows)
    ]
    head = ["M messages / s (/ CPU s)", "1 connection", "50 connections"]
    return table([*head, "ack p50 ms at 10,000 / s", "ack p99 ms", "read again"], lines)
