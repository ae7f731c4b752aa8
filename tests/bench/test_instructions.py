"""No codec takes a fifth more instructions than in ``instructions.json``.

With another Python than the one that it is of, the limit is half as much again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from tests.bench import instructions
from tests.bench.instructions import (
    BASELINE,
    CASES,
    REFERENCE,
    counts_between,
    regressions,
)
from tests.unit.kernel_forms import FORMS

# Times vary with other load of the machine, so the best of several tries counts.
TRIES = 3


def measured(form: str) -> dict[str, dict[str, float]]:
    """Return the output of ``instructions.py`` with this form of the kernel."""
    output = subprocess.run(
        [sys.executable, "-P", instructions.__file__],
        env={**os.environ, "PUBSUB_KERNEL": form},
        check=True,
        stdout=subprocess.PIPE,
        timeout=300,
    ).stdout
    found: dict[str, dict[str, float]] = json.loads(output)
    return found


@pytest.mark.parametrize("form", [form.__name__.rpartition(".")[2] for form in FORMS])
def test_no_codec_takes_more_instructions_than_before(form: str) -> None:
    baseline = json.loads(BASELINE.read_text())
    for _ in range(TRIES):
        found = measured(form)
        # Counted if valgrind is installed; times vary more.
        how = min(found)
        worse = regressions(found[how], baseline[how])
        if not worse:
            break
    assert how.endswith(form)
    assert not worse, (
        f"{how}: {worse}; if that has to be: "
        f"PUBSUB_KERNEL={form} python -P tests/bench/instructions.py --update"
    )


def test_an_increase_by_a_fifth_is_detected() -> None:
    kept = {"cafe": 0.5, "fast": 0.8}
    assert not regressions({"cafe": 0.59, "fast": 0.1}, kept, 1.2)
    assert list(regressions({"cafe": 0.61, "fast": 0.1}, kept, 1.2)) == ["cafe"]


def test_every_form_has_a_baseline_of_every_codec() -> None:
    baseline = json.loads(BASELINE.read_text())
    ways = {
        f"{how}, {form}" for how in ("counted", "timed") for form in ("compiled", "interpreted")
    }
    assert baseline.keys() == ways
    for kept in baseline.values():
        assert kept.keys() == CASES.keys() - {REFERENCE}


HEADS = """
import os
from pubsub.protocols.rheos.client_answers import response_table
from pubsub.protocols.rheos.codec import Codec
from tests.unit.rheos_wire import response

cases = []
for order in ("little", "little", "big"):
    ids = [number.to_bytes(16, order) for number in range(1, 5000)]
    cases.append((response_table(Codec(), False), b"".join(response(one, b"x") for one in ids)))
for table, data in cases:
    os.getppid()
    table.scan(data)
os.getppid()
"""


@pytest.mark.skipif(which("valgrind") is None, reason="needs valgrind")
def test_heads_cost_the_same_wherever_they_differ(tmp_path: Path) -> None:
    _warm, first, last = counts_between(["-c", HEADS], tmp_path)
    assert last < 1.5 * first
