"""The benchmark of several brokers: it runs, and loses nothing."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

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


def test_what_two_brokers_do_is_divided_by_the_messages() -> None:
    # Not imported above, because it brings a reactor.
    from tests.bench.backplane_instructions import BatchLoad, results
    from tests.bench.metrics_instructions import Broker

    loads = {"one": BatchLoad(repetitions=4), "all": BatchLoad(2, 3, 30, 5, 4)}
    with patch.object(Broker, "counted", return_value=6000):
        found = dict(results((), loads))
    assert found == {"one": [6000 / 910 / 4] * 3, "all": [10] * 3}
