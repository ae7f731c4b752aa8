"""No codec takes a fifth more instructions than in ``instructions.json``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.bench import instructions
from tests.bench.instructions import BASELINE, CASES, REFERENCE, regressions
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
    assert not regressions({"cafe": 0.59, "fast": 0.1}, kept)
    assert list(regressions({"cafe": 0.61, "fast": 0.1}, kept)) == ["cafe"]


def test_every_form_has_a_baseline_of_every_codec() -> None:
    baseline = json.loads(BASELINE.read_text())
    ways = {
        f"{how}, {form}" for how in ("counted", "timed") for form in ("compiled", "interpreted")
    }
    assert baseline.keys() == ways
    for kept in baseline.values():
        assert kept.keys() == CASES.keys() - {REFERENCE}
