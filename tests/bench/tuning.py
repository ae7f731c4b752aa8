"""The gain of each trick: how many times as long a delivery takes without it.

    python -m tests.bench.tuning
    python -m tests.bench.tuning direct-transport --rounds 9

Each round measures a broker with all tricks and one without each of them, in processes of their own
(``lockstep.py``). The figures are medians of the ratios within a round. ``all`` is
``--tuning=off``; ``kernel`` is the compiled kernel; ``none`` turns nothing off and shows the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median

from pubsub.tuning import TRICKS

CORE = 1
_SECONDS = 120


def measure(without: str) -> dict[str, float]:
    """Return the ns for a delivery of each load."""
    environment = {k: v for k, v in os.environ.items() if k != "PUBSUB_KERNEL"}
    if without == "kernel":
        environment["PUBSUB_KERNEL"] = "interpreted"
    command = [sys.executable, "-m", "tests.bench.lockstep", without]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=True
    )
    figures: dict[str, float] = json.loads(result.stdout)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table."""
    names = [*(trick.name for trick in TRICKS), "kernel", "all", "none"]
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.tuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("tricks", nargs="*", metavar="TRICK", help=f"of {', '.join(names)} (default: all of them)")
    add("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    unknown = set(options.tricks) - set(names)
    if unknown:
        parser.error(f"{min(unknown)} is not one of {', '.join(names)}")
    os.sched_setaffinity(0, {CORE})
    chosen = options.tricks or names
    ratios: dict[tuple[str, str], list[float]] = {}
    for number in range(options.rounds):
        full = measure("")
        # The order alternates, because the processor may get slower in the course of a round.
        for name in chosen if number % 2 else reversed(chosen):
            for load, nanoseconds in measure(name).items():
                ratios.setdefault((name, load), []).append(nanoseconds / full[load])
    print(f"| without | {' | '.join(full)} |\n| --- |{' ---: |' * len(full)}")
    for name in chosen:
        print(f"| {name} | {' | '.join(f'{median(ratios[name, load]):.2f}' for load in full)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
