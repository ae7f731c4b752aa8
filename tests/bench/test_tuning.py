"""The measurement of the tricks: it runs a broker without each of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pubsub.tuning import TRICKS

SHORT = """
import sys
from tests.bench import lockstep
lockstep.LOADS = {name: (*load[:-1], 20) for name, load in lockstep.LOADS.items() if load[2] < 999}
print(lockstep.json.dumps(dict(lockstep.results(sys.argv[1]))))
"""


@pytest.mark.parametrize("name", ["all", *(trick.name for trick in TRICKS)])
def test_deliveries_are_timed_without_a_trick(name: str) -> None:
    command = [sys.executable, "-c", SHORT, name]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    figures = json.loads(result.stdout)
    assert len(figures) == 4
    assert all(nanoseconds > 0 for nanoseconds in figures.values())
