"""Results in a file, so that a comparison can be measured in parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from tests.bench import BenchError
from tests.bench.broker import Broker
from tests.bench.peers.contenders import Contender
from tests.bench.peers.rounds import Results, take_turns
from tests.bench.rows import Row

Figures = dict[str, float]
"""The figures of one run. Without any, the contender has no result in that row."""
Measure = Callable[[Broker, Contender, Row], Figures]


class Kept:
    """The figures of all runs: a line of JSON for each, in the order of measuring.

    Results of another ``environment`` are not comparable. They are an error, and so is a file of
    another form. Without a path nothing is written. With ``resume``, runs that the file has are not
    repeated.
    """

    def __init__(self, path: Path | None, environment: str, resume: bool = False) -> None:
        self._path = path
        self._resume = resume
        self._figures: dict[tuple[str, str, str, int], Figures] = {}
        head = json.dumps({"environment": environment})
        if path is None:
            return
        if path.exists():
            self._read(path, head)
        else:
            path.write_text(head + "\n")

    def _read(self, path: Path, head: str) -> None:
        first, *lines = path.read_text().splitlines() or [""]
        if first != head:
            raise BenchError(
                f"{path} has results of another environment: {first}, not {head}; remove the file"
            )
        try:
            for line in lines:
                self._set(*json.loads(line))
        except (TypeError, ValueError) as error:
            raise BenchError(f"{path} is not readable: {error}; remove the file") from error

    def put(self, section: str, row: str, name: str, number: int, figures: Figures) -> None:
        """Keep the figures of one run. Those of the first round replace earlier ones."""
        self._set(section, row, name, number, figures)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps([section, row, name, number, figures]) + "\n")

    def _set(self, section: str, row: str, name: str, number: int, figures: Figures) -> None:
        if number == 0:
            # A new measurement of a cell replaces all rounds of the earlier one.
            earlier = [key for key in self._figures if key[:3] == (section, row, name)]
            for key in earlier:
                del self._figures[key]
        self._figures[section, row, name, number] = figures

    def has(self, section: str, row: str, name: str, number: int) -> bool:
        """Return whether a run need not be repeated."""
        return self._resume and (section, row, name, number) in self._figures

    def results(self, section: str) -> Results[Figures]:
        """Return all results of a section; a contender without figures in a row has a gap."""
        results: Results[Figures] = Results()
        for (which, row, name, _), figures in self._figures.items():
            if which == section and figures:
                results.runs[name, row].append(figures)
        return results

    def missing(self, section: str, rows: Sequence[Row], contenders: Sequence[Contender]) -> int:
        """Return the number of cells of a table that were not measured."""
        measured = {(row, name) for which, row, name, _ in self._figures if which == section}
        cells = [(row.name, one.name) for row in rows for one in contenders]
        return sum(cell not in measured for cell in cells)


def measure_rows(
    kept: Kept,
    section: str,
    rows: Sequence[Row],
    contenders: Sequence[Contender],
    rounds: int,
    measure: Measure,
) -> list[str]:
    """Measure the chosen rows, keep the results, and return the failures."""

    by_name = {row.name: row for row in rows}

    def wanted(contender: Contender, column: Hashable, number: int) -> bool:
        return not kept.has(section, str(column), contender.name, number)

    def one(broker: Broker, contender: Contender, column: Hashable) -> Figures:
        return measure(broker, contender, by_name[str(column)])

    def done(contender: Contender, column: Hashable, number: int, figures: Figures) -> None:
        kept.put(section, str(column), contender.name, number, figures)

    return take_turns(contenders, [*by_name], rounds, one, wanted, done).failures


def discard(path: Path) -> None:
    """Begin a new file of results."""
    if path.exists():
        path.unlink()
        print(f"the results of an earlier run in {path} are discarded", file=sys.stderr)
