"""Live traffic as applications have it, over every broker: the section ``traffic``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.bench.broker import Broker
from tests.bench.peers.contenders import Contender, ours
from tests.bench.peers.docs import millions, table
from tests.bench.peers.kept import Figures, Kept, measure_rows
from tests.bench.peers.rounds import Results
from tests.bench.report import IDLE_SHARE
from tests.bench.rows import Row, chosen, live_rows
from tests.bench.traffic import measure

SECTION = "traffic"
FREE = ("--durability=*=none",)
# In the directory of the process, which is deleted at its end.
ON_DISK = ("--store=log:history",)
# Subscribers over nsd read the history, which is in memory here.
IN_MEMORY = ("--durability=*=async",)
CAFE, STORED, INTERPRETED = "cafe", "cafe, stored", "cafe, interpreted"


def our_contenders(options: argparse.Namespace) -> list[Contender]:
    """Return this broker over its protocols, once with the history on disk."""
    twistd = options.twistd
    interpreted = {"PUBSUB_KERNEL": "interpreted"}
    found = ours(twistd, [CAFE], "", FREE)
    found += ours(twistd, [CAFE], ", stored", ON_DISK)
    if options.interpreted:
        found += ours(twistd, [CAFE], ", interpreted", FREE, interpreted)
    return [
        *found,
        *ours(twistd, ("rheos", "fast", "spot"), "", FREE),
        *ours(twistd, ["nsd"], "", IN_MEMORY),
    ]


def run(
    contenders: Sequence[Contender], options: argparse.Namespace, kept: Kept
) -> tuple[str, list[str]]:
    """Return the table of all results that are kept, and the errors of this run."""

    def one(broker: Broker, contender: Contender, row: Row) -> Figures:
        usage = measure(broker, contender.wire, row, options.seconds)
        return {"rate": usage.per_cpu_second, "idle": usage.broker_idle}

    rows = chosen(live_rows(), options.rows)
    failures = measure_rows(kept, SECTION, rows, contenders, options.rounds, one)
    return traffic_table(kept.results(SECTION), [one.name for one in contenders]), failures


def traffic_table(results: Results[Figures], names: Sequence[str]) -> str:
    """Return million deliveries a CPU second: a line for each row, a column for each broker.

    The last column divides the rate of cafe by that of the best other broker.
    """
    names = columns_of(results, names)
    others = [name for name in names if name not in _OURS]
    lines = []
    for row in live_rows():
        cells = [_cell(results, name, row) for name in names]
        if set(cells) != {"-"}:
            lines.append([row.name, *cells, _ratio(results, others, row)])
    return table(["million deliveries / CPU s", *names, "cafe / best other"], lines)


# In the README.
_SUMMARY = (CAFE, STORED, "nats-server", "redis-server", "mosquitto")


def summary_table(results: Results[Figures], names: Sequence[str]) -> str:
    """Return the same for fewer brokers."""
    wanted = [n for of in _SUMMARY for n in names if n == of or n.startswith(f"{of} ")]
    rows = [[row.name, *(_cell(results, n, row) for n in wanted)] for row in live_rows()]
    return table(["million deliveries / CPU s", *wanted], rows)


_OURS = (CAFE, STORED, INTERPRETED, "rheos", "fast", "spot", "nsd")


def columns_of(results: Results[Figures], names: Sequence[str]) -> list[str]:
    """Return the contenders with results: ``names`` first, then those of earlier runs."""
    there = list(dict.fromkeys(name for name, _ in results.runs))
    return [name for name in names if name in there] + [n for n in there if n not in names]


def _rate(results: Results[Figures], name: str, row: Row) -> float:
    return results.median(name, row.name, lambda run: run["rate"]) or 0.0


def _cell(results: Results[Figures], name: str, row: Row) -> str:
    rate = _rate(results, name, row)
    if not rate:
        return "-"
    idle = results.median(name, row.name, lambda run: run["idle"]) or 0.0
    # One that waits for each message has idle time in any case.
    return millions(rate) + ("*" if idle > IDLE_SHARE and not row.lone else "")


def _ratio(results: Results[Figures], others: Sequence[str], row: Row) -> str:
    best = max((_rate(results, name, row) for name in others), default=0.0)
    own = _rate(results, CAFE, row)
    return f"{own / best:.2f}" if best and own else "-"
