"""The options of the command line."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.plan import BATCH_BYTES, KIB, MIB, Topology
from tests.bench.wires import WIRES

MODES = ("throughput", "steady", "idle", "requests", "slow", "client")
SCENARIOS = ("1-1", "1-100", "50-1", "10-pairs")
SIZES = (64, KIB, 64 * KIB)
MIN_SIZE = 16

DESCRIPTION = """\
Measures a publish/subscribe broker: it runs as a process of its own on one core, the load
generator on another. Figures are per CPU second of the broker. Each run starts and stops a new
broker. Exit code 1 if a run failed or a message was lost, duplicated or reordered."""

EPILOG = """\
modes (default: throughput):
  throughput   each --scenario with each --size, as fast as the broker can
  steady       latency at a fixed --rate, one message a send
  idle         resident memory and accept rate of --connections idle subscribers
  requests     the longest time for which each request of all protocols holds the reactor, with
               --topics topics and ten times as many subscriptions
  slow         throughput and latency of subscribers of cafe with and without others that do not
               keep up, which lose nothing
  client       the client library and the generator in turn, over cafe with 64 bytes

scenarios:
  P-S          P publishers and S subscribers on one topic, e.g. 1-1, 1-100, 50-1
  N-pairs      N topics with one publisher and one subscriber each

examples:
  python -m tests.bench --scenario 1-1 --size 64 --seconds 3
  python -m tests.bench throughput steady idle --json bench.json --markdown bench.md
  python -m tests.bench --scenario 50-1 --size 16 --batch 1 --window 1   (one message at a time)
  python -m tests.bench --self-test"""


@dataclass(frozen=True)
class BenchOptions:
    """Sizes in bytes, times in seconds."""

    modes: list[str]
    self_test: bool
    wire: str
    scenarios: list[Topology]
    sizes: list[int]
    seconds: float
    batch: int
    window: int | None
    rate: float
    steady_scenario: Topology
    steady_size: int
    connections: int
    topics: int
    twistd: Path
    broker_options: list[str]
    broker_core: int
    generator_core: int
    json: Path | None
    markdown: Path | None


def parse_options(arguments: Sequence[str] | None = None) -> BenchOptions:
    """Parse the command line. An invalid one ends the program with a usage error."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("modes", nargs="*", type=_mode, metavar="MODE", help="what to measure, see below")
    add("--self-test", action="store_true", help="measure the generator alone, with each --size")
    add("--wire", choices=sorted(WIRES), default="cafe", help="protocol (default: cafe)")
    _add_load_options(parser)
    _add_broker_options(parser)
    add("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    add("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    values = vars(parser.parse_args(arguments))
    options = BenchOptions(
        **{
            **values,
            "modes": values["modes"] or ["throughput"],
            "scenarios": values["scenarios"] or [Topology.parse(name) for name in SCENARIOS],
            "sizes": values["sizes"] or list(SIZES),
        }
    )
    missing = {options.broker_core, options.generator_core} - os.sched_getaffinity(0)
    if missing:
        parser.error(f"this process may not run on core {min(missing)}")
    return options


def _add_load_options(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load; sizes in bytes, or with KiB or MiB after the number")
    add = load.add_argument
    add("--scenario", dest="scenarios", action="append", type=_topology, metavar="NAME",
        help=f"may be repeated (default: {', '.join(SCENARIOS)})")  # fmt: skip
    add("--size", dest="sizes", action="append", type=_payload, metavar="SIZE",
        help="payload, may be repeated, from 16 to 1MiB or the most the protocol can carry "
        "(default: 64, 1KiB, 64KiB)")  # fmt: skip
    add("--seconds", type=_positive, default=5.0, help="measured time of each run (default: 5)")
    add("--batch", type=_size, default=BATCH_BYTES, metavar="SIZE",
        help="bytes in one send, but at least one message (default: 64KiB)")  # fmt: skip
    add("--window", type=_size, metavar="SIZE",
        help="bytes in flight of each publisher, but at least one batch (default: 256KiB, "
        "less with many publishers or subscribers)")  # fmt: skip
    add("--rate", type=_positive, default=5000.0,
        help="steady: messages a second, all publishers together (default: 5000)")  # fmt: skip
    add("--steady-scenario", type=_topology, default=Topology(1, 10), metavar="NAME",
        help="steady: publishers and subscribers (default: 1-10)")  # fmt: skip
    add("--steady-size", type=_payload, default=64, metavar="SIZE",
        help="steady: payload (default: 64)")  # fmt: skip
    add("--connections", type=_count, default=10_000, metavar="N",
        help="idle: number of connections (default: 10000)")  # fmt: skip
    add("--topics", type=_count, default=100_000, metavar="N",
        help="requests: number of topics (default: 100000)")  # fmt: skip


def _add_broker_options(parser: argparse.ArgumentParser) -> None:
    broker = parser.add_argument_group("broker")
    add = broker.add_argument
    add("--twistd", type=Path, default=Path(sys.executable).with_name("twistd"), metavar="PATH",
        help="of the environment the broker is installed in (default: this one)")  # fmt: skip
    add("--broker-options", type=shlex.split, default=[], metavar="TEXT",
        help="added to its command line, e.g. --broker-options='--config /path/x.toml'; it works "
        "in a temporary directory, so paths must be absolute")  # fmt: skip
    add("--broker-core", type=int, default=0, metavar="N", help="(default: 0)")
    add("--generator-core", type=int, default=1, metavar="N", help="(default: 1)")


def _mode(text: str) -> str:
    # With `choices`, argparse would reject an empty list.
    if text not in MODES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(MODES)}")
    return text


def _topology(text: str) -> Topology:
    try:
        return Topology.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> int:
    number, unit = text, 1
    for suffix, size in (("KiB", KIB), ("MiB", MIB)):
        if text.endswith(suffix):
            number, unit = text.removesuffix(suffix), size
    return _count(number) * unit


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _payload(text: str) -> int:
    size = _size(text)
    if not MIN_SIZE <= size <= MIB:
        raise argparse.ArgumentTypeError(f"{text!r} is not from {MIN_SIZE} to 1MiB")
    return size


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
