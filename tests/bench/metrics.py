"""The cost of the statistics: how many times as long a delivery takes with them.

    python -m tests.bench.metrics
    python -m tests.bench.metrics --rounds 15
    python -m tests.bench.metrics --null            what equal brokers differ by
    python -m tests.bench.metrics --instructions    by valgrind, without noise

Each round measures a broker with what is counted for statistics and metrics, and one without
(``uncounted.py``), in turns (``turns.py``). The figures are medians of the ratios of the rounds.
Then the time of a snapshot, which the reactor takes for each scrape, and of
the text of /metrics, which a thread writes, with many connections open.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median

from tests.bench.turns import Command, compare

CORE = 1
WITH = Command(("tests.bench.lockstep", ""))
WITHOUT = Command(("tests.bench.uncounted",))


def ratios_of(
    rounds: int, reference: Command = WITHOUT, loads: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Return how many times as long as in ``reference`` a delivery takes, of each round."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for (_, load), ratio in compare(reference, {"counted": WITH}, loads).items():
            found.setdefault(load, []).append(ratio)
    return found


def scrape_times(repetitions: int = 200) -> tuple[float, float]:
    """Return the seconds of a snapshot and of the text, medians."""
    from pubsub.http_api.metrics.metric_family import read
    from pubsub.http_api.metrics.metrics_exposition import render
    from tests.unit.streams import House

    statistics = House({"cafe": {}, "nsd": {}, "rheos": {}, "spot": {}}).broker.statistics
    snapshots, texts = [], []
    for _ in range(repetitions):
        begin = time.perf_counter()
        reading = read(
            statistics, {"version": "0", "kernel": "compiled", "python": "3", "name": "a"}
        )
        middle = time.perf_counter()
        render(reading, "")
        snapshots.append(middle - begin)
        texts.append(time.perf_counter() - middle)
    return median(snapshots), median(texts)


def print_instructions() -> None:
    """Print a table of instructions."""
    from tests.bench import metrics_instructions

    print("| load | with statistics | without | ratio |\n| --- | ---: | ---: | ---: |")
    for load, (counted, uncounted) in metrics_instructions.compare().items():
        print(f"| {load} | {counted:,.0f} | {uncounted:,.0f} | {counted / uncounted:.3f} |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.metrics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--null", action="store_true", help="compare with an equal broker instead")
    parser.add_argument("--instructions", action="store_true", help="count instead of timing")
    options = parser.parse_args(arguments)
    if options.instructions:
        print_instructions()
        return 0
    os.sched_setaffinity(0, {CORE})
    title = "with statistics / with" if options.null else "with statistics / without"
    print(f"| load | {title} | lowest | highest |\n| --- | ---: | ---: | ---: |")
    for load, ratios in ratios_of(options.rounds, WITH if options.null else WITHOUT).items():
        print(f"| {load} | {median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} |")
    snapshot, text = scrape_times()
    print(f"\nsnapshot {snapshot * 1e6:.0f} µs, text {text * 1e6:.0f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
