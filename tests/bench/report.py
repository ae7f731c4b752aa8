"""Results as JSON and as Markdown."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.idle import Idle
from tests.bench.measure import Latency
from tests.bench.plan import KIB, MIB, RunPlan
from tests.bench.requests.site import Result
from tests.bench.slow import SlowRound
from tests.bench.steady import SteadyRun
from tests.bench.throughput import Throughput

Json = dict[str, Any]

# Above this idle share the generator was the bottleneck.
IDLE_SHARE = 0.1


@dataclass
class Report:
    """All results of one call; `errors` are the runs that failed."""

    environment: dict[str, str] = field(default_factory=dict)
    throughput: list[Throughput] = field(default_factory=list)
    steady: list[SteadyRun] = field(default_factory=list)
    idle: list[Idle] = field(default_factory=list)
    requests: list[Result] = field(default_factory=list)
    slow: list[SlowRound] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add_request(self, result: Result) -> None:
        """Add a result and print it, as all of them take some minutes."""
        self.requests.append(result)
        held = result.median
        print(f"{result.wire}: {result.request}: {held.held:.2f} ms", file=sys.stderr)

    @property
    def clean(self) -> bool:
        """True if no run failed and no message was lost, duplicated or out of order."""
        runs: list[Throughput | SteadyRun] = [*self.throughput, *self.steady]
        accounted = all(run.accounting.clean for run in runs)
        return not self.errors and accounted and all(one.clean for one in self.slow)

    def json(self) -> Json:
        """Return plain values: seconds, bytes, messages; latencies in microseconds."""
        return {
            "environment": self.environment,
            "throughput": [_throughput_json(run) for run in self.throughput],
            "steady": [_steady_json(run) for run in self.steady],
            "idle": [asdict(run) for run in self.idle],
            "requests": [asdict(result) for result in self.requests],
            "slow": [asdict(one) for one in self.slow],
            "errors": self.errors,
        }

    def markdown(self) -> str:
        """Return one section for each kind of measurement."""
        parts = []
        if self.environment:
            parts.append(_list(f"{name}: {value}" for name, value in self.environment.items()))
        if self.throughput:
            parts.append(THROUGHPUT_TEXT)
            parts.append(_table(THROUGHPUT_COLUMNS, map(_throughput_row, self.throughput)))
        if self.steady:
            parts.append(STEADY_TEXT)
            parts.append(_table(STEADY_COLUMNS, map(_steady_row, self.steady)))
        if self.idle:
            parts.append(IDLE_TEXT)
            parts.append(_table(IDLE_COLUMNS, map(_idle_row, self.idle)))
        if self.requests:
            parts.append(REQUESTS_TEXT)
            parts.append(_table(REQUESTS_COLUMNS, map(_request_row, self.requests)))
        if self.slow:
            parts.append(SLOW_TEXT)
            parts.append(_table(SLOW_COLUMNS, map(_slow_row, self.slow)))
        if self.errors:
            parts.append(_list(f"failed: {error}" for error in self.errors))
        return "\n\n".join(parts) + "\n"


def environment(broker_python: str, twisted: str, cores: tuple[int, int]) -> dict[str, str]:
    """Return the environment of the figures; `cores` are those of broker and generator."""
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return {
        "broker": f"{broker_python}, Twisted {twisted}",
        "generator": f"Python {platform.python_version()}",
        "processor": f"{_cpu_model()}, {os.cpu_count()} cores",
        "cores": f"broker on {cores[0]}, generator on {cores[1]}",
        "kernel": f"{platform.release()}, TCP congestion control {congestion}",
    }


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def size_label(size: int) -> str:
    """Format bytes, such as 64 B, 1 KiB, 1 MiB."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and not size % unit:
            return f"{size // unit} {name}"
    return f"{size:,} B"


def _plan_json(plan: RunPlan) -> Json:
    return {
        "scenario": str(plan.topology),
        "payload_bytes": plan.payload,
        "messages_per_batch": plan.per_batch,
        "window_batches": plan.window,
    }


def _throughput_json(run: Throughput) -> Json:
    return {
        **_plan_json(run.plan),
        **asdict(run.accounting),
        **asdict(run.usage),
        "deliveries_per_cpu_second": run.usage.per_cpu_second,
        "acknowledged_per_cpu_second": run.usage.acknowledged_per_cpu_second,
        "megabytes_per_second": run.megabytes_per_second,
        "broker_busy": run.usage.broker_busy,
        "broker_held_up": run.usage.broker_held_up,
        "broker_idle": run.usage.broker_idle,
        "generator_was_bottleneck": run.usage.broker_idle > IDLE_SHARE,
        "latency_under_full_load_us": _latency_json(run.latency),
    }


def _steady_json(run: SteadyRun) -> Json:
    return {
        **_plan_json(run.plan),
        **asdict(run.accounting),
        **asdict(run.usage),
        "rate": run.rate,
        "broker_cpu_per_second": run.usage.broker_busy,
        "latency_us": _latency_json(run.latency),
        "generator_lag_us": _latency_json(run.lag),
    }


def _latency_json(latency: Latency | None) -> Json | None:
    return asdict(latency) if latency else None


THROUGHPUT_TEXT = """\
## Throughput

Published and delivered count the whole run; rates are those of its measured part. Window is what
each publisher may have in flight: batches times messages in each. The columns busy, held up and
idle divide the wall-clock time: the broker worked, other processes used its core (the machine is
then too busy to measure on), or it waited. More than 10 % idle (marked *) means that the generator
was the bottleneck. Latency is that under full load, mostly time queued in the window."""

THROUGHPUT_COLUMNS = (
    "scenario", "payload", "window", "published", "delivered", "lost", "dup.", "out of order",
    "wall s", "broker CPU s", "M deliveries / CPU s", "M acks / CPU s", "MB/s",
    "busy", "held up", "idle", "p50 µs", "p99 µs", "p99.9 µs",
)  # fmt: skip


def _throughput_row(run: Throughput) -> list[str]:
    plan, usage = run.plan, run.usage
    return [
        str(plan.topology),
        size_label(plan.payload),
        f"{plan.window} x {plan.per_batch}",
        *_accounting_cells(run),
        f"{usage.wall_seconds:.1f}",
        f"{usage.broker_cpu_seconds:.2f}",
        _millions(usage.per_cpu_second),
        _millions(usage.acknowledged_per_cpu_second) if usage.acknowledgments else "-",
        f"{run.megabytes_per_second:,.0f}",
        f"{usage.broker_busy:.0%}",
        f"{usage.broker_held_up:.0%}",
        f"{usage.broker_idle:.0%}" + ("*" if usage.broker_idle > IDLE_SHARE else ""),
        *_latency_cells(run.latency),
    ]


STEADY_TEXT = """\
## Latency at a fixed rate

One message in each send. Lag is the delay of the generator."""

STEADY_COLUMNS = (
    "scenario", "payload", "messages/s", "published", "delivered", "lost", "dup.", "out of order",
    "broker CPU s / s", "p50 µs", "p99 µs", "p99.9 µs", "lag p50 µs", "lag p99 µs", "lag p99.9 µs",
)  # fmt: skip


def _steady_row(run: SteadyRun) -> list[str]:
    return [
        str(run.plan.topology),
        size_label(run.plan.payload),
        f"{run.rate:,.0f}",
        *_accounting_cells(run),
        f"{run.usage.broker_busy:.3f}",
        *_latency_cells(run.latency),
        *_latency_cells(run.lag),
    ]


IDLE_TEXT = """\
## Idle connections

Resident memory in addition to that of the broker with its first dozen connections."""

IDLE_COLUMNS = (
    "connections", "bytes each", "base MiB", "accepted / s", "accepted / CPU s", "CPU idle",
)  # fmt: skip


def _idle_row(run: Idle) -> list[str]:
    return [
        f"{run.connections:,}",
        f"{run.bytes_per_connection:,.0f}",
        f"{run.base_bytes / MIB:.1f}",
        f"{run.accepts_per_second:,.0f}",
        f"{run.accepts_per_cpu_second:,.0f}",
        f"{run.idle_cpu_share:.1%}",
    ]


REQUESTS_TEXT = """\
## Requests

The longest tick of the reactor from the request on, in milliseconds: by the clock, and by the
processor time of the reactor's thread, which other programs on the machine do not lengthen. The
median of all rounds; pauses of the garbage collector are not included."""

REQUESTS_COLUMNS = ("request", "held ms", "processor ms")


def _request_row(result: Result) -> list[str]:
    held = result.median
    return [
        f"{result.wire}: {result.request}",
        f"{held.held:.2f}",
        f"{held.processor:.2f}",
    ]


SLOW_TEXT = """\
## Slow subscribers

Subscribers without, then with others that do not keep up: millions of deliveries as fast as the
broker can, for each second and for each second of its processor time, and latencies in microseconds
at a fixed rate. The ratios are those of the second to the first, and in brackets those of a second
run without slow ones to the first. Missing and misplaced are messages that the slow subscribers did
not receive in order when they read at last; returns are the connections of one that resumes its
session and never reads."""

SLOW_COLUMNS = (
    "million/s without", "with", "ratio", "million/CPU s without", "with", "ratio",
    "p50 without", "with", "p99 without", "with", "ratio", "missing", "misplaced", "returns",
)  # fmt: skip


def _slow_row(one: SlowRound) -> list[str]:
    alone, beside, slow = one.alone, one.beside, one.beside.slow
    counts = ("-",) * 3 if slow is None else (slow.missing, slow.misplaced, slow.returns)
    pairs = zip(one.ratios(beside), one.ratios(one.again), strict=True)
    throughput, efficiency, p99 = [f"{ratio:.2f} ({null:.2f})" for ratio, null in pairs]
    return [
        _millions(alone.throughput),
        _millions(beside.throughput),
        throughput,
        _millions(alone.efficiency),
        _millions(beside.efficiency),
        efficiency,
        *_latency_pair(alone.p50, beside.p50),
        *_latency_pair(alone.p99, beside.p99),
        p99,
        *map(str, counts),
    ]


def _latency_pair(alone: float, beside: float) -> tuple[str, str]:
    return f"{alone:,.0f}", f"{beside:,.0f}"


def _accounting_cells(run: Throughput | SteadyRun) -> list[str]:
    return [f"{count:,}" for count in asdict(run.accounting).values()]


def _millions(rate: float) -> str:
    return f"{rate / 1e6:#.3g}".rstrip(".")


def _latency_cells(latency: Latency | None) -> list[str]:
    return [f"{value:,.0f}" for value in asdict(latency).values()] if latency else ["-"] * 3


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
