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
from tests.bench.broker import twisted_version
from tests.bench.peers import durable, scaling
from tests.bench.peers import sections as measure_usage
from tests.bench.peers.contenders import (
    BROKER_CORE,
    GENERATOR_CORE,
    Contender,
    ours,
    peers,
)
from tests.bench.peers.docs import update
from tests.bench.report import environment

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


SECTIONS: dict[str, Section] = {
    "throughput": throughput,
    "steady": steady,
    "single": single,
    "large": large,
    "scaling": scaling.section,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    add = parser.add_argument
    add("sections", nargs="*", help=f"of {', '.join(SECTIONS)} (default: all of them)")
    add("--rounds", type=int, default=3, help="runs of each broker in each column (default: 3)")
    add("--seconds", type=float, default=2.0, help="measured time of each run (default: 2)")
    add("--connections", type=int, default=10_000, help="idle connections (default: 10000)")
    add("--only", action="append", default=[], metavar="NAME",
        help="only brokers whose name begins with NAME; may be repeated")  # fmt: skip
    add("--twistd", type=Path, default=Path(sys.executable).with_name("twistd"))
    add("--compiled", type=Path, metavar="TWISTD",
        help="twistd of an environment with compiled modules, measured as well")  # fmt: skip
    add("--docs", type=Path, default=Path("docs/performance.md"), metavar="FILE",
        help="page to write the tables into (default: docs/performance.md)")  # fmt: skip
    add("--durable", action="store_true", help="measure only storage on disk")
    add("--dry", action="store_true", help="print the tables and do not write the page")
    options = parser.parse_args(arguments)
    unknown = set(options.sections) - SECTIONS.keys()
    if unknown:
        parser.error(f"no section {', '.join(unknown)}")
    options.sections = options.sections or ([] if options.durable else list(SECTIONS))
    return options


WIRES = ("cafe", "fast", "rheos", "spot")


def field(options: argparse.Namespace) -> list[Contender]:
    """Return all brokers, or those that ``--only`` names. Raises BenchError."""
    every = [*peers(), *_ours(options.twistd)]
    if options.compiled is not None:
        every += _ours(options.compiled, " (compiled)")
    wanted = tuple(options.only)
    return [contender for contender in every if contender.name.startswith(wanted or "")]


def _ours(twistd: Path, suffix: str = "") -> list[Contender]:
    free, stored = ["--durability=*=none"], ["--durability=*=async"]
    # Subscribers over nsd read from the history, which is in memory here.
    return [*ours(twistd, WIRES, suffix, free), *ours(twistd, ["nsd"], suffix, stored)]


def main() -> int:
    """Return the exit code: 1 if a run failed."""
    options = parse()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _terminated)
    os.sched_setaffinity(0, {GENERATOR_CORE})
    contenders = field(options)
    failures: list[str] = []
    _write(options, "environment", _environment(options))
    if options.durable:
        text, failures = durable.run(options)
        _write(options, "durable", text)
    for name in options.sections:
        text, failed = SECTIONS[name](contenders, options)
        _write(options, name, text)
        failures += failed
    print(*failures, sep="\n", file=sys.stderr)
    return 1 if failures else 0


def _write(options: argparse.Namespace, name: str, text: str) -> None:
    """Write at once, so that a run that ends early keeps its results."""
    print(f"\n{name}\n\n{text}\n", flush=True)
    if not options.dry:
        update(options.docs, [(name, text)])


def _environment(options: argparse.Namespace) -> str:
    cores = (BROKER_CORE, GENERATOR_CORE)
    about = environment(f"CPython {sys.version.split()[0]}", twisted_version(options.twistd), cores)
    return "\n".join(f"- {name}: {value}" for name, value in about.items())


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(str(error))
