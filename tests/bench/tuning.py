"""The gain of each trick: how many times as long a delivery takes without it.

    python -m tests.bench.tuning
    python -m tests.bench.tuning direct-transport --rounds 9

Each round measures a broker with all tricks and one without each of them, in turns (``turns.py``).
The figures are medians of the ratios of the rounds. ``all`` is
``--tuning=off``; ``kernel`` is the compiled kernel; ``none`` turns nothing off and shows the noise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from statistics import median

from pubsub.tuning import TRICKS
from tests.bench.turns import LOADS, Command, compare

CORE = 1


def command(without: str) -> Command:
    """Return the command of a broker without a trick."""
    kernel = "interpreted" if without == "kernel" else ""
    return Command(("tests.bench.lockstep", without), (("PUBSUB_KERNEL", kernel),))


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
    for _ in range(options.rounds):
        for place, ratio in compare(command(""), {name: command(name) for name in chosen}).items():
            ratios.setdefault(place, []).append(ratio)
    print(f"| without | {' | '.join(LOADS)} |\n| --- |{' ---: |' * len(LOADS)}")
    for name in chosen:
        print(f"| {name} | {' | '.join(f'{median(ratios[name, load]):.2f}' for load in LOADS)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
