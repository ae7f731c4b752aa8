"""The time of a delivery at several brokers, which are measured in turns of some milliseconds.

The processor of a virtual machine may be twice as fast in one second as in the next. So each turn
of a broker is compared with that of another one beside it, and the figure of a round is the median
of these ratios. Two equal processes differ by some percent, because their memory is not arranged
alike: each round starts them again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import NamedTuple

from tests.bench.wires.cafe import CafeWire

# Publishers, subscribers, bytes of a payload, messages in a send, repetitions in a round.
LOADS: Mapping[str, tuple[int, int, int, int, int]] = {
    "1-1, one at a time": (1, 1, 64, 1, 4000),
    "50-1, one at a time": (50, 1, 64, 1, 400),
    "1-10, one at a time": (1, 10, 64, 1, 2000),
    "1-1, 64 B in batches": (1, 1, 64, 900, 1500),
    "1-1, 1 KiB in batches": (1, 1, 1024, 60, 1500),
    "1-1, 64 KiB": (1, 1, 65_000, 1, 1500),
    "1-1, 1 MiB": (1, 1, CafeWire().max_payload, 1, 400),
}
_TURNS = 20
_SECONDS = 60
Ratios = dict[tuple[str, str], float]


class Command(NamedTuple):
    """A module that runs ``lockstep.serve``, with its arguments and changes of the environment."""

    module: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


class _Broker:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, load: str, repetitions: int) -> float:
        """Return the ns for a delivery."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{repetitions} {load}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


@contextmanager
def _started(command: Command) -> Iterator[_Broker]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command.module],
        env={**os.environ, **dict(command.environment)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    try:
        yield _Broker(process)
    finally:
        process.stdin.close()
        process.wait(_SECONDS)


def compare(
    reference: Command, others: Mapping[str, Command], loads: Mapping[str, int] | None = None
) -> Ratios:
    """Measure a round; return how many times as long as in ``reference`` a delivery takes.

    The result is by name of the ``others`` and load. ``loads`` has the repetitions in a round.
    """
    if loads is None:
        loads = {name: load[-1] for name, load in LOADS.items()}
    with ExitStack() as stack:
        first = stack.enter_context(_started(reference))
        brokers = {name: stack.enter_context(_started(other)) for name, other in others.items()}
        ratios: dict[tuple[str, str], list[float]] = {}
        for load, repetitions in loads.items():
            few = max(repetitions // _TURNS, 1)
            for broker in (first, *brokers.values()):
                broker.measure(load, few)
            for _ in range(_TURNS):
                expected = first.measure(load, few)
                for name, broker in brokers.items():
                    ratio = broker.measure(load, few) / expected
                    ratios.setdefault((name, load), []).append(ratio)
    return {place: median(found) for place, found in ratios.items()}
