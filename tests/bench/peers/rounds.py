"""The order of the measurements, and their results."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

from tests.bench import BenchError
from tests.bench.broker import Broker
from tests.bench.peers.contenders import Contender

Result = TypeVar("Result")


@dataclass
class Results(Generic[Result]):
    """The results of each contender in each round of each column. A failure leaves a gap."""

    runs: defaultdict[tuple[str, Hashable], list[Result]] = field(
        default_factory=lambda: defaultdict(list)
    )
    failures: list[str] = field(default_factory=list)

    def of(self, name: str, column: Hashable) -> list[Result]:
        """Return the rounds of one cell."""
        return self.runs.get((name, column), [])

    def median(self, name: str, column: Hashable, value: Callable[[Result], float]) -> float | None:
        """Return the median of one cell, or None for an empty cell."""
        values = [value(run) for run in self.of(name, column)]
        return median(values) if values else None

    def names(self, contenders: Iterable[Contender]) -> list[str]:
        """Return the contenders that have a result."""
        there = {name for name, _ in self.runs}
        return [contender.name for contender in contenders if contender.name in there]


def take_turns(
    contenders: Sequence[Contender],
    columns: Sequence[Hashable],
    rounds: int,
    measure: Callable[[Broker, Contender, Hashable], Result | None],
    wanted: Callable[[Contender, Hashable, int], bool] = lambda *_: True,
    done: Callable[[Contender, Hashable, int, Result], None] = lambda *_: None,
) -> Results[Result]:
    """Measure every contender in every column, ``rounds`` times; every other round is reversed.

    Other load of the machine then affects all contenders. ``measure`` returns None if a contender
    has no result in a column. ``wanted`` is asked before each run, and ``done`` gets each result.
    """
    results: Results[Result] = Results()
    for column in columns:
        for number in range(rounds):
            for contender in contenders if number % 2 else reversed(contenders):
                if not wanted(contender, column, number):
                    continue
                print(f"{column}, round {number + 1}: {contender.name}", file=sys.stderr)
                try:
                    with contender.start() as broker:
                        result = measure(broker, contender, column)
                except BenchError as error:
                    results.failures.append(f"{column}, {contender.name}: {error}")
                    print(results.failures[-1], file=sys.stderr)
                    print(*getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
                    continue
                if result is not None:
                    results.runs[contender.name, column].append(result)
                    done(contender, column, number, result)
    return results
