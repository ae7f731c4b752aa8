"""The benchmark of several brokers: it runs, and loses nothing."""

from __future__ import annotations

from functools import partial

from tests.bench.backplane import PAYLOAD, WIRE, measure_alone, measure_shared
from tests.bench.plan import Topology, make_plan


def test_both_sides_deliver_everything() -> None:
    plan = make_plan(WIRE, Topology(2, 2, 2), PAYLOAD)
    for measure in (measure_alone, measure_shared, partial(measure_shared, number=3)):
        run = measure(plan, 0.2)
        assert run.accounting.clean
        assert run.accounting.delivered > 0
        assert run.rate > 0
        assert run.efficiency > 0
