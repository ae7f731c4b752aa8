"""Brokers at a nats-server, beside one broker alone: the costs of the way between them.

The publishers are clients of the first broker, the subscribers of the others in turn. Topics have
durability `none`, except with a history. The figures are deliveries a second, with all processes on
the same machine, and for each second of processor time of the busiest broker, with all of its
threads; `part` compares the latter with one broker alone. nats-server's own processor time is not
counted to any broker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from tests.bench import BenchError
from tests.bench.broker import Broker, twistd_broker
from tests.bench.generator import Load
from tests.bench.measure import Accounting, no_collection
from tests.bench.plan import MIB, RunPlan, Topology, make_plan
from tests.bench.wires import WIRES
from tests.integration.nats_server import NatsServer, nats_server

WIRE = WIRES["cafe"]
PAYLOAD = 64
TOPOLOGIES = (Topology(1, 1), Topology(1, 10), Topology(10, 10, 10))
WARM_UP = 1.0
# Seconds for the server to have the subscriptions.
_SUBSCRIPTIONS = 20.0
# What a publisher may have on its way through three processes. With the 256 KiB of one broker's
# benchmarks, each of them waits for the others most of the time.
WINDOW_BYTES = MIB
NONE, OWN, SHARED = "none", "own", "shared"
HISTORIES = (NONE, OWN, SHARED)
TWISTD = Path(sys.executable).with_name("twistd")


@dataclass(frozen=True)
class Run:
    """Deliveries a second, and for each second of the busier broker's processor time."""

    rate: float
    efficiency: float
    accounting: Accounting


def measure_alone(plan: RunPlan, seconds: float, history: str = NONE) -> Run:
    """Measure one broker."""
    with _directory() as directory:
        options = _history_options(history, directory)
        with twistd_broker(TWISTD, WIRE, options, _cores()[0]) as broker:
            load = Load(broker.address, WIRE, plan)
            return _measure(load, [broker], seconds)


def measure_shared(plan: RunPlan, seconds: float, number: int = 2, history: str = NONE) -> Run:
    """Measure ``number`` brokers with a server between them."""
    with ExitStack() as stack:
        directory = stack.enter_context(_directory())
        server = stack.enter_context(nats_server(Path(directory), "-m", "-1"))
        common = [f"--backplane={server.url}"]
        if history == SHARED:
            common.append("--backplane-history=shared")
        cores = _cores()
        brokers = []
        for place in range(number):
            options = [*common, *_history_options(history, f"{directory}/{place}")]
            core = cores[place % len(cores)]
            brokers.append(stack.enter_context(twistd_broker(TWISTD, WIRE, options, core)))
        first, second, *others = brokers
        addresses = [one.address for one in others]
        load = Load(second.address, WIRE, plan, first.address, others=addresses)
        # Brokers with a shared history read the whole stream instead.
        if history != SHARED:
            _await_subscriptions(server, _subscriptions(plan.topology, number - 1))
        return _measure(load, brokers, seconds)


def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bench-backplane-")


def _history_options(history: str, directory: str) -> list[str]:
    return ["--durability=*=none"] if history == NONE else [f"--store=log:{directory}/history"]


def _subscriptions(topology: Topology, brokers: int) -> int:
    """Return how many topics the subscribers of all ``brokers`` read, in all."""
    places = range(topology.subscribers)
    return len({(place % brokers, place % topology.topics) for place in places})


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _await_subscriptions(server: NatsServer, topics: int) -> None:
    """Wait until the server has the subscriptions of the subscribers' brokers."""
    deadline = time.monotonic() + _SUBSCRIPTIONS
    while sum(server.subscriptions("pubsub.v1.t.")) < topics:
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


def _number(text: str) -> int:
    number = int(text)
    if number < 2:
        raise ValueError
    return number


def _report(topology: Topology, brokers: int, run: Run, alone: Run) -> bool:
    """Print a row; return whether every message arrived once and in order."""
    print(
        f"| {topology} | {brokers} | {run.rate:,.0f} | {run.efficiency:,.0f} "
        f"| {run.efficiency / alone.efficiency:.2f} |",
        flush=True,
    )
    return run.accounting.clean


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
    parser.add_argument("--window", type=int, default=WINDOW_BYTES, metavar="BYTES")
    parser.add_argument("--history", choices=HISTORIES, default=NONE)
    parser.add_argument("--brokers", type=_number, nargs="+", default=[2], metavar="N")
    options = parser.parse_args(arguments)
    print("| load | brokers | deliveries/s | /CPU s of the busiest | part |")
    print("| --- | ---: | ---: | ---: | ---: |")
    clean = True
    try:
        for topology in options.topology or TOPOLOGIES:
            plan = make_plan(WIRE, topology, PAYLOAD, window_bytes=options.window)
            for _ in range(options.rounds):
                alone = measure_alone(plan, options.seconds, options.history)
                clean &= _report(topology, 1, alone, alone)
                for number in options.brokers:
                    run = measure_shared(plan, options.seconds, number, options.history)
                    clean &= _report(topology, number, run, alone)
    except (BenchError, subprocess.SubprocessError) as error:
        print(f"backplane: {error}", file=sys.stderr)
        return 1
    if not clean:
        print("backplane: messages were lost, doubled or out of order", file=sys.stderr)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
