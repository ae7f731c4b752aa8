"""The measurement of the tricks: it runs a broker without each of them."""

from __future__ import annotations

import pytest

from pubsub.tuning import TRICKS
from tests.bench.tuning import command
from tests.bench.turns import LOADS, compare


@pytest.mark.parametrize("name", ["all", "kernel", *(trick.name for trick in TRICKS)])
def test_deliveries_are_timed_without_a_trick(name: str) -> None:
    loads = {load: 20 for load, (_, _, size, _, _) in LOADS.items() if size < 999}
    found = compare(command(""), {name: command(name)}, loads)
    assert found.keys() == {(name, load) for load in loads}
    assert min(found.values()) > 0
