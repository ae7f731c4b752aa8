"""No codec takes a fifth more instructions than in ``instructions.json``."""

from __future__ import annotations

import json

from tests.bench.instructions import BASELINE, CASES, REFERENCE, measure, regressions

# Times vary with other load of the machine, so the best of several tries counts.
TRIES = 3


def test_no_codec_takes_more_instructions_than_before() -> None:
    baseline = json.loads(BASELINE.read_text())
    for _ in range(TRIES):
        how, found = measure()
        worse = regressions(found, baseline[how])
        if not worse:
            break
    assert not worse, (
        f"{how}: {worse}; if that has to be: python -P tests/bench/instructions.py --update"
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
