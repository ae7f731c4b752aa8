"""Healthy subscribers beside slow ones: the cost of the slow ones to the others.

Throughput and latency of the healthy subscribers are measured with and without the slow ones (see
``slow_clients.py``), in turn, each with a new broker whose history is on disk, and once more
without them. The figures are ratios of runs that follow each other; the ratio of the two without
slow ones shows how much the machine alone makes them differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import BenchError
from tests.bench.broker import Broker, twistd_broker
from tests.bench.measure import Accounting
from tests.bench.plan import KIB, Topology, make_plan
from tests.bench.slow_clients import PACED, STUCK, SlowAccounting, SlowClients, slow_clients
from tests.bench.steady import measure_steady
from tests.bench.throughput import measure_throughput
from tests.bench.wires import WIRES

TOPOLOGY = Topology(1, 200 - STUCK - PACED)
PAYLOAD = KIB
RATE = 200.0
"""Messages a second while the latency is measured, after the throughput."""
ROUNDS = 3
_WIRE = WIRES["cafe"]


@dataclass(frozen=True)
class Side:
    """The healthy subscribers of one run of each kind, with or without slow ones.

    ``throughput`` is in deliveries a second, ``efficiency`` in deliveries for each second of the
    broker's processor time; ``p50`` and ``p99`` are latencies in µs.
    """

    throughput: float
    efficiency: float
    p50: float
    p99: float
    accounting: tuple[Accounting, ...]
    slow: SlowAccounting | None = None


@dataclass(frozen=True)
class SlowRound:
    """Sides that were measured one after the other; ``again`` is as ``alone``."""

    alone: Side
    beside: Side
    again: Side

    def ratios(self, side: Side) -> tuple[float, float, float]:
        """Return throughput, efficiency and 99th percentile of ``side``, divided by ``alone``."""
        alone = self.alone
        return (
            side.throughput / alone.throughput,
            side.efficiency / alone.efficiency,
            side.p99 / alone.p99,
        )

    @property
    def clean(self) -> bool:
        """True if no message was lost, duplicated or out of order."""
        slow = self.beside.slow
        sides = self.alone, self.beside, self.again
        accounting = [each for side in sides for each in side.accounting]
        return all(one.clean for one in accounting) and (
            slow is None or not (slow.missing or slow.misplaced)
        )


def measure_slow(
    twistd: Path, options: Sequence[str], cores: tuple[int, int], seconds: float
) -> Iterator[SlowRound]:
    """Measure ROUNDS rounds; ``cores`` are the broker's and the generator's. Raises BenchError."""
    for number in range(ROUNDS):
        beside = None
        if number % 2:
            beside = _side(twistd, options, cores, seconds, True)
        alone = _side(twistd, options, cores, seconds, False)
        if beside is None:
            beside = _side(twistd, options, cores, seconds, True)
        yield SlowRound(alone, beside, _side(twistd, options, cores, seconds, False))


def _side(
    twistd: Path, options: Sequence[str], cores: tuple[int, int], seconds: float, slow: bool
) -> Side:
    with _broker(twistd, options, cores[0]) as broker:
        if not slow:
            return _measure(broker, seconds)
        with slow_clients(broker.address, PAYLOAD, cores[1]) as clients:
            return _measure(broker, seconds, clients)


def _measure(broker: Broker, seconds: float, clients: SlowClients | None = None) -> Side:
    """Measure the throughput, then the latency while the slow subscribers are behind."""
    plan = make_plan(_WIRE, TOPOLOGY, PAYLOAD)
    full = measure_throughput(broker, _WIRE, plan, seconds)
    steady = measure_steady(broker, _WIRE, TOPOLOGY, PAYLOAD, RATE, seconds)
    if steady.latency is None:
        raise BenchError("no message arrived while the latency was measured")
    slow = None
    if clients is not None:
        runs = (full.accounting.published, plan), (steady.accounting.published, steady.plan)
        slow = clients.finish([(count, one.per_batch * one.cycle) for count, one in runs])
    return Side(
        full.usage.deliveries / full.usage.wall_seconds,
        full.usage.deliveries / full.usage.broker_cpu_seconds,
        steady.latency.p50,
        steady.latency.p99,
        (full.accounting, steady.accounting),
        slow,
    )


@contextmanager
def _broker(twistd: Path, options: Sequence[str], core: int) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="bench-slow-") as directory:
        store = f"--store=log:{directory}/history"
        with twistd_broker(twistd, _WIRE, [store, *options], core) as broker:
            yield broker
