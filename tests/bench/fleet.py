"""A model of many brokers at one engine: the load of each broker, and the engine's traffic.

Nothing is started or measured. Some seconds of a workload are drawn at random, from a seed: each
topic has a publisher's broker, subscribers at random brokers, and a random number of messages in
each second. Every step of a message costs its broker what was measured of one:

    read     one read of a publisher: of the topic's `batch` messages
    write    one write to a subscriber, of as many
    send     one record to the engine, which every read becomes
    receive  one record from the engine, at each other broker with a subscriber of the topic

Records that wait are sent together by real brokers, which this model leaves out, so a broker near a
load of 1 does better than here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BROKERS = 100
SECONDS = 10
HEAD_BYTES = 60
"""An envelope and the head of its record."""

# Microseconds for each, and for each of its messages. The first two follow from the tables of
# docs/performance.md: 64 B from one publisher to one and to ten subscribers, and single messages.
# The others are from tests.bench.backplane on a busy machine, less what the same run took alone, in
# proportion to an idle one.
COSTS: Mapping[str, tuple[float, float]] = {
    "read": (3.5, 0.021),
    "write": (2.4, 0.008),
    "send": (20.0, 0.012),
    "receive": (30.0, 0.018),
}


@dataclass(frozen=True)
class Workload:
    """``spread`` is the part of the subscribers that are at any broker, not at the publisher's."""

    name: str
    topics: int
    subscribers: int
    """Of each topic."""
    rate: float
    """Messages a second of each topic."""
    batch: int
    payload: int = 64
    spread: float = 1.0


WORKLOADS = (
    Workload("rooms: 100,000 of 10, anywhere", 100_000, 10, 0.2, 1),
    Workload("rooms, 9 of 10 at one broker", 100_000, 10, 0.2, 1, spread=0.1),
    Workload("news: 10 topics of 100,000", 10, 100_000, 2, 1),
    Workload("feeds: 100 of 10,000, in batches", 100, 10_000, 200, 20),
    Workload("own topics: 1,000,000 of 1", 1_000_000, 1, 0.02, 1),
)


@dataclass(frozen=True)
class Result:
    """``load`` is the part of a core that each broker uses."""

    load: NDArray[np.float64]
    engine_in: float
    """Messages a second that brokers send to the engine."""
    engine_out: float
    """Messages a second that it sends to them."""
    megabytes_out: float
    subscriptions: float
    """Of each broker at the engine, the mean."""


def simulate(
    workload: Workload,
    costs: Mapping[str, tuple[float, float]] = COSTS,
    brokers: int = BROKERS,
    seed: int = 1,
) -> Result:
    """Draw the workload and add its costs up."""
    draw = np.random.default_rng(seed)
    batch = workload.batch
    cost = {step: each + batch * more for step, (each, more) in costs.items()}
    busy = np.zeros(brokers)
    sent = received = interests = 0
    for topics in _parts(workload):
        home = draw.integers(brokers, size=topics)
        at = _placed(draw, workload, home, brokers)
        reads = draw.poisson(workload.rate / batch * SECONDS, size=topics)
        remote = at > 0
        interests += int(remote.sum())
        # Its own broker has no message from the engine.
        remote[np.arange(topics), home] = False
        np.add.at(busy, home, reads * (cost["read"] + cost["send"]))
        busy += reads @ at * cost["write"] + reads @ remote * cost["receive"]
        sent += int(reads.sum())
        received += int(reads @ remote.sum(axis=1))
    bytes_each = batch * workload.payload + HEAD_BYTES
    return Result(
        busy / SECONDS / 1e6,
        sent / SECONDS,
        received / SECONDS,
        received * bytes_each / SECONDS / 1e6,
        interests / brokers,
    )


def _parts(workload: Workload) -> Sequence[int]:
    """Return the numbers of topics that are drawn together, which bounds the memory."""
    most = 10_000
    whole, rest = divmod(workload.topics, most)
    return [most] * whole + [rest] * bool(rest)


def _placed(
    draw: np.random.Generator, workload: Workload, home: NDArray[np.int64], brokers: int
) -> NDArray[np.int64]:
    """Return how many subscribers each topic has at each broker."""
    far = draw.binomial(workload.subscribers, workload.spread, size=len(home))
    at = draw.multinomial(far, np.full(brokers, 1 / brokers))
    at[np.arange(len(home)), home] += workload.subscribers - far
    return at


def row(workload: Workload, result: Result) -> str:
    """Return a line of the table."""
    messages = workload.topics * workload.rate
    return (
        f"| {workload.name} | {messages:,.0f} | {messages * workload.subscribers:,.0f} "
        f"| {result.load.mean():.2f} | {result.load.max():.2f} | {result.engine_in:,.0f} "
        f"| {result.engine_out:,.0f} | {result.megabytes_out:,.1f} "
        f"| {result.subscriptions:,.0f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of all workloads."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.fleet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--brokers", type=int, default=BROKERS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--cost",
        nargs=3,
        action="append",
        default=[],
        metavar=("STEP", "EACH", "MESSAGE"),
        help="microseconds of a step, and of each message in it",
    )
    options = parser.parse_args(arguments)
    costs = {**COSTS}
    for step, each, more in options.cost:
        if step not in costs:
            parser.error(f"--cost: expected one of {', '.join(costs)}, not {step}")
        costs[step] = float(each), float(more)
    print(
        "| workload | messages/s | deliveries/s | load, mean | load, most | engine in/s "
        "| engine out/s | MB/s out | subscriptions |"
    )
    print("| --- |" + " ---: |" * 8)
    for workload in WORKLOADS:
        print(row(workload, simulate(workload, costs, options.brokers, options.seed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
