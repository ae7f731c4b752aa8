"""Latency at a fixed rate: one message a send, at predetermined times."""

from __future__ import annotations

import time
from array import array
from contextlib import closing
from dataclasses import dataclass

from tests.bench.broker import Broker
from tests.bench.generator import Load
from tests.bench.measure import WARM_UP_SECONDS, Accounting, Latency, Meter, Usage, no_collection
from tests.bench.plan import KIB, RunPlan, Topology, make_plan
from tests.bench.wires import Wire

# Large enough for any rate that the broker can sustain.
WINDOW_BYTES = 256 * KIB
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class SteadyRun:
    """One run at `rate` messages a second of all publishers together.

    `lag` is the delay of the generator's own sends. If it is near the latency, the machine was too
    busy for the latency to be meaningful.
    """

    plan: RunPlan
    rate: float
    usage: Usage
    accounting: Accounting
    latency: Latency | None
    lag: Latency | None


def measure_steady(
    broker: Broker, wire: Wire, topology: Topology, payload: int, rate: float, seconds: float
) -> SteadyRun:
    """Measure one run. Raises BenchError without progress for too long."""
    plan = make_plan(wire, topology, payload, batch_bytes=1, window_bytes=WINDOW_BYTES)
    load = Load(broker.address, wire, plan, broker.publish_address)
    with closing(load), no_collection():
        _pace(load, rate, WARM_UP_SECONDS)
        del load.samples[:]
        meter = Meter(broker, load)
        lag = _pace(load, rate, seconds)
        usage = meter.stop()
        latency = Latency.of(load.samples)
        load.drain()
        return SteadyRun(plan, rate, usage, Accounting.of(load), latency, Latency.of(lag))


def _pace(load: Load, rate: float, seconds: float) -> array[int]:
    """Publish in turn at `rate` and return the delay of each send in nanoseconds."""
    lag: array[int] = array("q")
    for publisher in load.publishers:
        publisher.allowance = 0
    interval = SECOND_NS / rate
    start = time.perf_counter_ns()
    for number in range(int(rate * seconds)):
        due = start + int(number * interval)
        while time.perf_counter_ns() < due:
            load.sweep()
        publisher = load.publishers[number % len(load.publishers)]
        publisher.allowance = 1
        while publisher.allowance:
            load.sweep()
        lag.append(publisher.last_sent - due)
    return lag
