"""Two brokers at a nats-server, beside one broker alone: the costs of the way between them.

The publishers are clients of the first broker, the subscribers of the second. Topics have
durability `none`. The figures are deliveries a second, with all processes on the same machine, and
for each second of processor time of the busier broker, with all of its threads. nats-server's own
processor time is not counted to either broker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.bench import BenchError
from tests.bench.broker import Broker, twistd_broker
from tests.bench.generator import Load
from tests.bench.measure import Accounting, no_collection
from tests.bench.plan import RunPlan, Topology, make_plan
from tests.bench.wires import WIRES
from tests.integration.nats_server import NatsServer, nats_server

WIRE = WIRES["cafe"]
PAYLOAD = 64
TOPOLOGIES = (Topology(1, 1), Topology(1, 10), Topology(10, 10, 10))
WARM_UP = 1.0
# Seconds for the server to have the subscriptions.
_SUBSCRIPTIONS = 20.0
NONE = "--durability=*=none"
TWISTD = Path(sys.executable).with_name("twistd")


@dataclass(frozen=True)
class Run:
    """Deliveries a second, and for each second of the busier broker's processor time."""

    rate: float
    efficiency: float
    accounting: Accounting


def measure_alone(plan: RunPlan, seconds: float) -> Run:
    """Measure one broker."""
    with twistd_broker(TWISTD, WIRE, [NONE], _cores()[0]) as broker:
        load = Load(broker.address, WIRE, plan)
        return _measure(load, [broker], seconds)


def measure_shared(plan: RunPlan, seconds: float) -> Run:
    """Measure two brokers with a server between them."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-backplane-") as directory,
        nats_server(Path(directory), "-m", "-1") as server,
    ):
        options = [NONE, f"--backplane={server.url}"]
        with (
            twistd_broker(TWISTD, WIRE, options, _cores()[0]) as first,
            twistd_broker(TWISTD, WIRE, options, _cores()[-1]) as second,
        ):
            load = Load(second.address, WIRE, plan, first.address)
            _await_subscriptions(server, plan.topology.topics)
            return _measure(load, [first, second], seconds)


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _await_subscriptions(server: NatsServer, topics: int) -> None:
    """Wait until the server has the subscriptions of the subscribers' broker."""
    deadline = time.monotonic() + _SUBSCRIPTIONS
    while not any(found >= topics for found in server.subscriptions("pubsub.v1.t.")):
        if time.monotonic() > deadline:
            raise BenchError("the server does not know what the subscribers want")
        time.sleep(0.05)


def _measure(load: Load, brokers: Sequence[Broker], seconds: float) -> Run:
    with closing(load), no_collection():
        load.run(WARM_UP)
        begin, before = time.perf_counter(), load.delivered
        used = [broker.cpu_seconds() for broker in brokers]
        load.run(seconds)
        wall, delivered = time.perf_counter() - begin, load.delivered - before
        busiest = max(
            broker.cpu_seconds() - start for broker, start in zip(brokers, used, strict=True)
        )
        load.drain()
        return Run(delivered / wall, delivered / busiest, Accounting.of(load))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; fail if a message was lost, doubled or out of order."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.backplane",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--topology", type=Topology.parse, action="append")
    options = parser.parse_args(arguments)
    head = "| load | alone, /s | shared, /s | alone, /CPU s | shared, /CPU s | part |"
    print(f"{head}\n| --- | ---: | ---: | ---: | ---: | ---: |")
    clean = True
    try:
        for topology in options.topology or TOPOLOGIES:
            plan = make_plan(WIRE, topology, PAYLOAD)
            for _ in range(options.rounds):
                alone = measure_alone(plan, options.seconds)
                shared = measure_shared(plan, options.seconds)
                clean = clean and alone.accounting.clean and shared.accounting.clean
                print(
                    f"| {topology} | {alone.rate:,.0f} | {shared.rate:,.0f} "
                    f"| {alone.efficiency:,.0f} | {shared.efficiency:,.0f} "
                    f"| {shared.efficiency / alone.efficiency:.2f} |",
                    flush=True,
                )
    except (BenchError, subprocess.SubprocessError) as error:
        print(f"backplane: {error}", file=sys.stderr)
        return 1
    if not clean:
        print("backplane: messages were lost, doubled or out of order", file=sys.stderr)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
