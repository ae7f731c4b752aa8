"""The measurements of the comparison and their tables."""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import cast

from tests.bench.broker import Broker
from tests.bench.idle import Idle, measure_idle, raise_file_limit
from tests.bench.measure import Accounting
from tests.bench.peers.contenders import Contender
from tests.bench.peers.docs import millions, table
from tests.bench.peers.rounds import Results, take_turns
from tests.bench.plan import MIB, Topology, make_plan
from tests.bench.report import IDLE_SHARE, size_label
from tests.bench.steady import SteadyRun, measure_steady
from tests.bench.throughput import Throughput, measure_throughput

from tests.bench import BenchError  # isort: skip


@dataclass(frozen=True)
class Column:
    """One kind of load. With ``single``, each message is sent after the previous one arrived."""

    topology: Topology
    size: int
    single: bool = False

    def __str__(self) -> str:
        names = {"50-1": "50 to 1", "10-pairs": "10 pairs"}
        name = names.get(str(self.topology), str(self.topology).replace("-", " to "))
        return f"{name.replace(' to pairs', ' pairs')}, {size_label(self.size)}"


def _columns(*loads: tuple[str, int], single: bool = False) -> list[Column]:
    return [Column(Topology.parse(name), size, single) for name, size in loads]


SMALL = _columns(("1-1", 16), ("1-1", 1024), ("1-100", 64), ("50-1", 64), ("10-pairs", 64))
SINGLE = _columns(("50-1", 16), ("50-pairs", 16), ("1-1", 16), single=True)
LARGE = _columns(("1-1", 65_000), ("1-10", 65_000), ("1-1", MIB), ("1-10", MIB))
IDLE, STEADY = "idle", "steady"


def measure_column(
    seconds: float, broker: Broker, contender: Contender, column: Column
) -> Throughput | None:
    """Return one run, or None if the wire cannot carry such a payload. Raises BenchError."""
    if contender.wire.max_payload < 0.99 * column.size:
        return None
    batch, window = (1, 1) if column.single else (64 * 1024, None)
    plan = make_plan(contender.wire, column.topology, column.size, batch, window)
    result = measure_throughput(broker, contender.wire, plan, seconds)
    check(result.accounting)
    return result


def check(accounting: Accounting) -> None:
    """Raise BenchError if a message was lost, duplicated or out of order."""
    if not accounting.clean:
        raise BenchError(f"not all arrived: {accounting}")


def rates(
    contenders: Sequence[Contender], columns: Sequence[Column], options: argparse.Namespace
) -> Results[Throughput]:
    """Measure deliveries a CPU-second of every contender in every column."""

    def measure(broker: Broker, contender: Contender, column: Hashable) -> Throughput | None:
        return measure_column(options.seconds, broker, contender, cast(Column, column))

    return take_turns(contenders, columns, options.rounds, measure)


def idle(contenders: Sequence[Contender], options: argparse.Namespace) -> Results[Idle]:
    """Measure the memory of an idle connection subscribed to one topic, and the accept rate."""
    raise_file_limit(options.connections)

    def measure(broker: Broker, contender: Contender, column: Hashable) -> Idle:
        return measure_idle(broker, contender.wire, options.connections)

    return take_turns(contenders, [IDLE], 1, measure)


def steady(contenders: Sequence[Contender], options: argparse.Namespace) -> Results[SteadyRun]:
    """Measure latency at 5,000 messages a second to ten subscribers."""

    def measure(broker: Broker, contender: Contender, column: Hashable) -> SteadyRun:
        result = measure_steady(broker, contender.wire, Topology(1, 10), 64, 5000, options.seconds)
        check(result.accounting)
        return result

    return take_turns(contenders, [STEADY], options.rounds, measure)


# Tables


def rate_of(run: Throughput) -> float:
    """Deliveries a CPU-second."""
    return run.usage.per_cpu_second


def rate_cell(results: Results[Throughput], name: str, column: Column) -> str:
    """Million deliveries a CPU-second, marked where the generator was the bottleneck."""
    rate = results.median(name, column, rate_of)
    if rate is None:
        return "-"
    starved = results.median(name, column, lambda run: run.usage.broker_idle) or 0.0
    return millions(rate) + ("*" if starved > IDLE_SHARE and not column.single else "")


def rate_table(
    results: Results[Throughput],
    contenders: Sequence[Contender],
    columns: Sequence[Column],
    idles: Results[Idle] | None = None,
) -> str:
    """One row for each contender, one column for each load."""
    head = ["million deliveries / CPU s", *map(str, columns)]
    rows = []
    for name in results.names(contenders):
        row = [name, *(rate_cell(results, name, column) for column in columns)]
        if idles is not None:
            each = idles.median(name, IDLE, lambda run: run.bytes_per_connection)
            accepted = idles.median(name, IDLE, lambda run: run.accepts_per_second)
            row += ["-" if cell is None else f"{cell:,.0f}" for cell in (each, accepted)]
        rows.append(row)
    if idles is not None:
        head += ["bytes an idle connection", "accepted / s"]
    return table(head, rows)


def ratio_table(
    results: Results[Throughput], contenders: Sequence[Contender], columns: Sequence[Column]
) -> str:
    """Rates of this broker divided by those of the best other broker, and of each other one."""
    names = results.names(contenders)
    mine = [
        contender.name for contender in contenders if contender.ours and contender.name in names
    ]
    others = [
        contender.name for contender in contenders if not contender.ours and contender.name in names
    ]
    rows = []
    for name in mine:
        rows.append(
            [f"{name} / best of the others", *(_best(results, name, others, c) for c in columns)]
        )
        rows += [
            [f"{name} / {other}", *(_times(results, name, other, c) for c in columns)]
            for other in (*others, *(["cafe"] if name == "fast" and "cafe" in mine else ()))
            if name != "cafe"
        ]
    return table(["ratio of rates", *map(str, columns)], rows)


def _best(results: Results[Throughput], name: str, others: Sequence[str], column: Column) -> str:
    own = results.median(name, column, rate_of)
    rates = [results.median(other, column, rate_of) for other in others]
    best = max((rate for rate in rates if rate is not None), default=0.0)
    return "-" if own is None or not best else f"{own / best:.2f}"


def _times(results: Results[Throughput], name: str, other: str, column: Column) -> str:
    own, its = results.median(name, column, rate_of), results.median(other, column, rate_of)
    return "-" if own is None or not its else f"{own / its:.2f}"


def steady_table(results: Results[SteadyRun], contenders: Sequence[Contender]) -> str:
    """Return a table of latencies and their processor time."""
    rows = []
    for name in results.names(contenders):
        runs = results.of(name, STEADY)
        latencies = [run.latency for run in runs if run.latency is not None]
        busy = results.median(name, STEADY, lambda run: run.usage.broker_busy) or 0.0
        rows.append(
            [
                name,
                f"{_middle([latency.p50 for latency in latencies]):,.0f}",
                f"{_middle([latency.p99 for latency in latencies]):,.0f}",
                f"{busy:.3f}",
            ]
        )
    return table(["5,000 / s, 1 to 10, 64 B", "p50 µs", "p99 µs", "broker CPU s / s"], rows)


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else float("nan")


def single_table(
    results: Results[Throughput], contenders: Sequence[Contender], columns: Sequence[Column]
) -> str:
    """Return a table of deliveries per CPU second, not in millions."""
    rows = []
    for name in results.names(contenders):
        cells = [results.median(name, column, rate_of) for column in columns]
        rows.append([name, *("-" if cell is None else f"{cell:,.0f}" for cell in cells)])
    return table(["deliveries / CPU s", *map(str, columns)], rows)
