"""Measure this broker beside others: ``python -m tests.bench.peers --help``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from tests.bench import BenchError
from tests.bench.broker import kernel_of, twisted_version
from tests.bench.peers import live, scaling, stored
from tests.bench.peers import sections as measure_usage
from tests.bench.peers.contenders import BROKER_CORE, GENERATOR_CORE, Contender, peers
from tests.bench.peers.docs import update
from tests.bench.peers.kept import Kept, discard
from tests.bench.peers.logs import log_contenders
from tests.bench.report import environment
from tests.bench.rows import chosen, live_rows

Section = Callable[[Sequence[Contender], argparse.Namespace], tuple[str, list[str]]]


def throughput(
    contenders: Sequence[Contender], options: argparse.Namespace
) -> tuple[str, list[str]]:
    """Batched publishers, and the cost of idle connections."""
    idles = measure_usage.idle(contenders, options)
    results = measure_usage.rates(contenders, measure_usage.SMALL, options)
    text = measure_usage.rate_table(results, contenders, measure_usage.SMALL, idles)
    ratios = measure_usage.ratio_table(results, contenders, measure_usage.SMALL)
    return f"{text}\n\n{ratios}", idles.failures + results.failures


def large(contenders: Sequence[Contender], options: argparse.Namespace) -> tuple[str, list[str]]:
    """Measure large payloads."""
    results = measure_usage.rates(contenders, measure_usage.LARGE, options)
    return measure_usage.single_table(results, contenders, measure_usage.LARGE), results.failures


def single(contenders: Sequence[Contender], options: argparse.Namespace) -> tuple[str, list[str]]:
    """Measure one message at a time."""
    results = measure_usage.rates(contenders, measure_usage.SINGLE, options)
    return measure_usage.single_table(results, contenders, measure_usage.SINGLE), results.failures


def steady(contenders: Sequence[Contender], options: argparse.Namespace) -> tuple[str, list[str]]:
    """Measure a fixed rate."""
    results = measure_usage.steady(contenders, options)
    return measure_usage.steady_table(results, contenders), results.failures


LEADING = (live.SECTION, stored.SECTION)
UNIFORM: dict[str, Section] = {
    "throughput": throughput,
    "steady": steady,
    "single": single,
    "large": large,
    "scaling": scaling.section,
}
SECTIONS = (*LEADING, *UNIFORM)
EPILOG = f"""\
Without a section, {" and ".join(LEADING)} are measured, in less than 15 minutes. Their results are
kept in a file. A run with --only or --rows adds to them, and --resume repeats nothing that the file
has. The page is written when all cells of a table are there."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers", description=__doc__, epilog=EPILOG
    )
    add = parser.add_argument
    add("sections", nargs="*", metavar="SECTION",
        help=f"of {', '.join(SECTIONS)} (default: {' and '.join(LEADING)})")  # fmt: skip
    add("--rounds", type=int, default=1, help="runs of each broker in each row (default: 1)")
    add("--seconds", type=float, default=2.0, help="measured time of each run (default: 2)")
    add("--only", action="append", default=[], metavar="NAME",
        help="only brokers whose name begins with NAME; may be repeated")  # fmt: skip
    add("--rows", action="append", default=[], metavar="TEXT",
        help="only rows whose name contains TEXT; may be repeated")  # fmt: skip
    add("--interpreted", action="store_true", help="measure the interpreted kernel, too")
    add("--results", type=Path, default=Path("peers-results.jsonl"), metavar="FILE",
        help="where results are kept (default: peers-results.jsonl)")  # fmt: skip
    add("--resume", action="store_true", help="repeat nothing that the results have")
    add("--connections", type=int, default=10_000, help="idle connections (default: 10000)")
    add("--twistd", type=Path, default=Path(sys.executable).with_name("twistd"))
    add("--docs", type=Path, default=Path("docs/performance.md"), metavar="FILE",
        help="page to write the tables into (default: docs/performance.md)")  # fmt: skip
    add("--readme", type=Path, default=Path("README.md"), metavar="FILE",
        help="page to write a summary of the first table into (default: README.md)")  # fmt: skip
    add("--dry", action="store_true", help="print the tables and do not write pages")
    options = parser.parse_args(arguments)
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}")
    options.sections = options.sections or list(LEADING)
    if options.rows and not (chosen(live_rows(), options.rows) or stored.rows_of(options)):
        parser.error(f"no row contains {' or '.join(options.rows)}")
    return options


class Comparison:
    """One call of the program."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        others, self._missing = peers()
        self._contenders = [*others, *live.our_contenders(options)]
        self._storing, self._logs = log_contenders(options.twistd)
        self._environment = about(options)
        self._partial = bool(options.only or options.rows)
        if not (self._partial or options.resume) and set(LEADING) <= set(options.sections):
            discard(options.results)
        self._kept = Kept(options.results, self._environment, options.resume)
        self.failures: list[str] = []

    def run(self) -> None:
        """Measure each section, print its tables and write them into the page."""
        for line in self._missing:
            print(f"not measured: {line}", file=sys.stderr)
        for name in self._options.sections:
            text, failures, left = self._section(name)
            self.failures += failures
            print(f"\n{name}\n\n{text}\n", flush=True)
            # At once, so that a run that ends early keeps its results.
            self._write(name, text, left)
        wanted = tuple(self._options.only) or ""
        self.failures += [line for line in self._missing if line.startswith(wanted)]

    def _section(self, name: str) -> tuple[str, list[str], int]:
        """Return a section's tables, the failures, and the number of cells to be measured."""
        options, kept = self._options, self._kept
        contenders = self._wanted(self._contenders)
        if name == live.SECTION:
            text, failures = live.run(contenders, options, kept)
            return text, failures, kept.missing(name, [*live_rows()], self._contenders)
        if name == stored.SECTION:
            text, failures = stored.run(self._wanted(self._storing), self._logs, options, kept)
            return text, failures, kept.missing(name, stored.ROWS, self._storing)
        free = [contender for contender in self._contenders if contender.name != live.STORED]
        contenders = self._wanted(free)
        text, failures = UNIFORM[name](contenders, options)
        return text, failures, len(free) - len(contenders)

    def _wanted(self, contenders: Sequence[Contender]) -> list[Contender]:
        wanted = tuple(self._options.only) or ""
        return [contender for contender in contenders if contender.name.startswith(wanted)]

    def _write(self, name: str, text: str, left: int) -> None:
        page = self._options.docs
        if self._options.dry:
            return
        if left or self._missing:
            why = f"{left} cells are not measured" if left else "brokers are missing"
            print(f"{name} is not written into {page}: {why}", file=sys.stderr)
            return
        where = "environment" if name in LEADING else "uniform environment"
        update(page, [(where, self._environment), (name, text)])
        if name == live.SECTION:
            names = [one.name for one in self._contenders]
            summary = live.summary_table(self._kept.results(name), names)
            update(self._options.readme, [("summary", summary)])


def about(options: argparse.Namespace) -> str:
    """Return the environment of the figures, as a list."""
    cores = (BROKER_CORE, GENERATOR_CORE)
    python = f"CPython {sys.version.split()[0]}, {kernel_of(options.twistd)}"
    found = environment(python, twisted_version(options.twistd), cores)
    return "\n".join(f"- {name}: {value}" for name, value in found.items())


def main() -> int:
    """Return the exit code: 1 if a run failed or a broker is missing."""
    options = parse()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _terminated)
    os.sched_setaffinity(0, {GENERATOR_CORE})
    comparison = Comparison(options)
    comparison.run()
    print(*comparison.failures, sep="\n", file=sys.stderr)
    return 1 if comparison.failures else 0


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(str(error))
