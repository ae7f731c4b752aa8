"""The cost of a message for the broker over one wire, as a multiple of that over another.

    python -m tests.bench.compare fast cafe --rounds 9

The default is one publisher, one subscriber and 64 bytes. Both wires have the same load: as many
messages in a send and in flight, whatever the length of their heads. They take turns, each with a
new broker, so that other load of the machine affects both. The results are medians: CPU time of the
broker per delivered message, and the ratio of each round.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.bench import BenchError
from tests.bench.broker import twistd_broker
from tests.bench.plan import Topology, make_plan
from tests.bench.throughput import Throughput, measure_throughput
from tests.bench.wires import WIRES

BROKER_CORE, GENERATOR_CORE = 0, 1


def measure(wire: str, options: argparse.Namespace) -> Throughput:
    """Measure one run. Raises BenchError, also for a lost, duplicated or reordered message."""
    message = WIRES[wire].publication(0, options.size).size
    batch, window = options.batch * message, options.window * message
    plan = make_plan(WIRES[wire], options.scenario, options.size, batch, window)
    with twistd_broker(options.twistd, WIRES[wire], (), BROKER_CORE) as broker:
        result = measure_throughput(broker, WIRES[wire], plan, options.seconds)
    if not result.accounting.clean:
        raise BenchError(f"{wire}: {result.accounting}")
    return result


def nanoseconds(result: Throughput) -> float:
    """Return the CPU time of the broker per delivered message, in nanoseconds."""
    return result.usage.broker_cpu_seconds / result.usage.deliveries * 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "wires",
        nargs=2,
        choices=sorted(WIRES),
        help="the wire to measure, and the wire to compare it with",
    )
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=2.0, help="measured time of each run")
    add("--scenario", type=Topology.parse, default=Topology(1, 1))
    add("--size", type=int, default=64, help="payload in bytes")
    add("--batch", type=int, default=910, help="messages in a send (default: 910)")
    add("--window", type=int, default=3640, help="messages in flight (default: 3640)")
    add("--twistd", type=Path, default=Path(sys.executable).with_name("twistd"))
    options = parser.parse_args(arguments)
    one, other = options.wires
    os.sched_setaffinity(0, {GENERATOR_CORE})
    costs: dict[str, list[float]] = {one: [], other: []}
    for number in range(options.rounds):
        # The order alternates, because the first of two runs can find a cooler processor.
        for wire in (one, other) if number % 2 else (other, one):
            costs[wire].append(nanoseconds(measure(wire, options)))
        print(
            f"round {number + 1}: {one} {costs[one][-1]:.0f} ns, {other} {costs[other][-1]:.0f} ns "
            f"a message, {costs[one][-1] / costs[other][-1]:.2f} times",
            flush=True,
        )
    ratios = [a / b for a, b in zip(costs[one], costs[other], strict=True)]
    print(
        f"medians: {one} {median(costs[one]):.0f} ns, {other} {median(costs[other]):.0f} ns, "
        f"{median(ratios):.2f} times (from {min(ratios):.2f} to {max(ratios):.2f})"
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(str(error))
