"""Stored messages, beside Redis' append-only file and NATS' JetStream: the section ``stored``.

A new server with an empty log stores messages as fast as it acknowledges them, and all of them are
looked for afterwards. Another measurement takes the latency of acknowledgments at 10,000 a second.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from tests.bench.acks import RateNotReached
from tests.bench.broker import Broker
from tests.bench.measure import no_collection
from tests.bench.peers.contenders import Contender
from tests.bench.peers.docs import table
from tests.bench.peers.kept import Figures, Kept, measure_rows
from tests.bench.peers.live import columns_of
from tests.bench.peers.logs import Log
from tests.bench.peers.rounds import Results
from tests.bench.peers.storing import Storing, acknowledgment_latencies, read_again
from tests.bench.rows import Row, chosen, stored_rows

SECTION = "stored"
ACKS = Row("acknowledgments at 10,000/s", [[(0, 64)]])
ROWS = [*stored_rows(), ACKS]
# The first row: this many messages are read again for its time, too.
_READ_ROW = "64 B"


def rows_of(options: argparse.Namespace) -> list[Row]:
    """Return the rows of ``--rows``."""
    return chosen(ROWS, options.rows)


def run(
    contenders: Sequence[Contender],
    logs: Mapping[str, Log],
    options: argparse.Namespace,
    kept: Kept,
) -> tuple[str, list[str]]:
    """Return the tables of all results that are kept, and the errors of this run."""

    def one(broker: Broker, contender: Contender, row: Row) -> Figures:
        with no_collection():
            log = logs[contender.name]
            if row is ACKS:
                return _acknowledgments(broker, log, options.seconds)
            return _stored(broker, log, row, options.seconds)

    failures = measure_rows(kept, SECTION, rows_of(options), contenders, options.rounds, one)
    results, names = kept.results(SECTION), [one.name for one in contenders]
    return stored_tables(results, names), failures


def _stored(broker: Broker, log: Log, row: Row, seconds: float) -> Figures:
    storing = Storing(broker, log, row)
    rate, cpu = storing.run(seconds)
    reading, count = read_again(broker, log, row, storing.stored)
    return {
        "rate": rate,
        "cpu": cpu,
        "read": count / reading.seconds,
        "read_cpu": count / reading.cpu,
    }


def _acknowledgments(broker: Broker, log: Log, seconds: float) -> Figures:
    try:
        latencies = acknowledgment_latencies(broker, log, seconds)
    except RateNotReached as error:
        print(f"the rate was not reached: {error}", file=sys.stderr)
        return {}
    p50, p99 = (latencies[int(share * (len(latencies) - 1))] / 1e6 for share in (0.5, 0.99))
    return {"p50": p50, "p99": p99}


def stored_tables(results: Results[Figures], names: Sequence[str]) -> str:
    """Return the rates of each row, of reading, and the latencies of acknowledgments."""
    names = columns_of(results, names)

    def middle(name: str, row: str, value: str) -> float | None:
        return results.median(name, row, lambda run: run[value])

    def cell(name: str, row: str, value: str) -> str:
        rate, cpu = middle(name, row, value), middle(name, row, f"{value}_cpu".replace("rate_", ""))
        return "-" if rate is None or cpu is None else f"{_thousands(rate)} ({_thousands(cpu)})"

    def latency(name: str, value: str) -> str:
        found = middle(name, ACKS.name, value)
        return "-" if found is None else f"{found:.2f}"

    lines = [[row.name, *(cell(name, row.name, "rate") for name in names)] for row in stored_rows()]
    lines.append([f"{_READ_ROW}, read again", *(cell(name, _READ_ROW, "read") for name in names)])
    acks = [[f"{value} ms", *(latency(name, value) for name in names)] for value in ("p50", "p99")]
    rates = table(["thousand messages / s (/ CPU s)", *names], lines)
    return f"{rates}\n\n{table([ACKS.name, *names], acks)}"


def _thousands(rate: float) -> str:
    return f"{rate / 1e3:#,.3g}".rstrip(".") if rate < 1e6 else f"{rate / 1e3:,.0f}"
