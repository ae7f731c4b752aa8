"""The comparison with a broker that counts nothing: it is one, and delivers the same."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.bench import turns
from tests.bench.metrics import WITH, WITHOUT, ratios_of, scrape_times
from tests.bench.turns import Command
from tests.bench.uncounted import REMOVED, changed

SHORT = """
import json, sys
if sys.argv[1] == "without":
    from tests.bench.uncounted import install
    install()
from pubsub.broker.figures.statistics import Statistics
from tests.bench import lockstep
found = []
make = Statistics.__init__
Statistics.__init__ = lambda self, *given: (found.append(self), make(self, *given))[1]
port = lockstep.start("")
times = {}
for name, load in lockstep.LOADS.items():
    if load[2] < 999:
        measurement = lockstep.Measurement(port, name)
        times[name] = measurement.run(20)
        measurement.close()
figures = found[0].snapshot()
print(json.dumps([times, figures["protocols"]["cafe"], figures["latency"]["flush"]["count"]]))
"""


@pytest.mark.parametrize("name", REMOVED)
def test_removed_texts_are_in_the_source(name: str) -> None:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    assert changed(source, REMOVED[name]) != source


def test_a_missing_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="not once"):
        changed("a b", [("c", "")])
    with pytest.raises(ValueError, match="not once"):
        changed("a a", [("a", "")])


@pytest.mark.parametrize("name", ["with", "without"])
def test_only_one_of_the_two_counts(name: str) -> None:
    command = [sys.executable, "-c", SHORT, name]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    times, traffic, flushes = json.loads(result.stdout)
    assert len(times) == 4
    assert all(nanoseconds > 0 for nanoseconds in times.values())
    counted = [traffic[key] > 0 for key in ("messages_in", "bytes_in", "messages_out", "bytes_out")]
    assert counted == [name == "with"] * 4
    assert (flushes > 0) is (name == "with")


def test_a_scrape_is_timed() -> None:
    assert min(scrape_times(2)) > 0


@pytest.mark.parametrize("reference", [WITHOUT, WITH])
def test_the_brokers_are_measured_in_turns(reference: Command) -> None:
    loads = {"1-1, one at a time": 40, "1-1, 64 KiB": 20}
    found = ratios_of(2, reference, loads)
    assert found.keys() == loads.keys()
    assert all(len(ratios) == 2 and min(ratios) > 0 for ratios in found.values())


class KnownTimes:
    """A broker whose deliveries take ``nanoseconds``."""

    def __init__(self, nanoseconds: float) -> None:
        self._nanoseconds = nanoseconds

    def measure(self, load: str, repetitions: int) -> float:
        return self._nanoseconds


def test_the_ratio_is_that_to_the_reference() -> None:
    times = {WITH: 100.0, WITHOUT: 80.0}
    loads = {"a": 40, "b": 1}
    with patch.object(turns, "_started", lambda command: nullcontext(KnownTimes(times[command]))):
        assert ratios_of(2, WITHOUT, loads) == {"a": [1.25, 1.25], "b": [1.25, 1.25]}
        assert ratios_of(1, WITH, loads) == {"a": [1.0], "b": [1.0]}


@pytest.mark.parametrize("form", ["counted", "uncounted"])
def test_what_a_broker_does_is_divided_by_the_deliveries(form: str, tmp_path: Path) -> None:
    # Not imported above, because it brings a reactor.
    from tests.bench.metrics_instructions import Broker, Load, measure

    broker = Broker(("tests.bench.metrics_instructions", form), tmp_path / "out", tool=())
    load = Load(publishers=3, subscribers=2, topics=2, sizes=(9, 64), repetitions=5)
    assert load.deliveries == 60
    try:
        with patch.object(Broker, "counted", return_value=6000):
            assert measure(broker, load) == 100
    finally:
        broker.close()
