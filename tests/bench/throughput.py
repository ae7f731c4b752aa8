"""Throughput: the most that the broker can deliver, and the CPU time of a delivery."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from tests.bench.broker import Broker
from tests.bench.generator import Load
from tests.bench.measure import WARM_UP_SECONDS, Accounting, Latency, Meter, Usage, no_collection
from tests.bench.plan import RunPlan
from tests.bench.wires import Wire


@dataclass(frozen=True)
class Throughput:
    """One run. Its latency is that under full load, mostly time queued in the window."""

    plan: RunPlan
    usage: Usage
    accounting: Accounting
    latency: Latency | None

    @property
    def megabytes_per_second(self) -> float:
        """Payload delivered, in millions of bytes per second of wall-clock time."""
        return self.usage.deliveries * self.plan.payload / self.usage.wall_seconds / 1e6


def measure_throughput(
    broker: Broker, wire: Wire, plan: RunPlan, seconds: float, every_byte: bool = False
) -> Throughput:
    """Warm up, measure for `seconds`, then wait for outstanding messages.

    Raises BenchError if that stalls.
    """
    load = Load(broker.address, wire, plan, broker.publish_address, every_byte)
    with closing(load), no_collection():
        load.run(WARM_UP_SECONDS)
        del load.samples[:]
        meter = Meter(broker, load)
        load.run(seconds)
        usage = meter.stop()
        latency = Latency.of(load.samples)
        load.drain()
        return Throughput(plan, usage, Accounting.of(load), latency)
