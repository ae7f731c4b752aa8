"""The tricks: which are in use, their page, and the tested versions of Twisted."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import twisted
from pubsub.tuning import TESTED_TWISTED, TRICKS, TUNED, choose

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tuning.md"
_MARKED = re.compile(r"<!-- tricks -->\n(.*?)<!-- end -->", re.DOTALL)
TESTED = max(TESTED_TWISTED)


def table() -> str:
    """Return the table of the page."""
    lines = ["| trick | effect | rests on | without it |", "| --- | --- | --- | --- |"]
    for trick in TRICKS:
        cell = f"**{trick.name}** (`{trick.module}`)"
        inside = ", inside Twisted" if trick.inside else ""
        lines.append(f"| {cell} | {trick.effect} | {trick.rests_on}{inside} | {trick.figure} |")
    return "\n" + "\n".join(lines) + "\n\n"


class ChoiceTests(SynchronousTestCase):
    """choose"""

    def test_all_are_used_with_a_tested_version(self) -> None:
        assert choose(True, TESTED) == TUNED
        assert str(TUNED) == "on"
        assert all(trick in TUNED for trick in TRICKS)

    def test_none_is_used_if_tuning_is_off(self) -> None:
        for version in (TESTED, "99.1.0"):
            tuning = choose(False, version)
            assert str(tuning) == "off"
            assert not any(trick in tuning for trick in TRICKS)
            assert not tuning.untested

    def test_other_versions_have_those_that_do_not_rest_on_the_inside_of_twisted(self) -> None:
        for version in ("99.1.0", f"{TESTED}rc1", f"{TESTED}.dev0", "", "unknown"):
            tuning = choose(True, version)
            assert str(tuning) == "on in part"
            assert tuning.untested == tuple(trick for trick in TRICKS if trick.inside)
            assert tuning.on == {trick for trick in TRICKS if not trick.inside}


class VersionTests(SynchronousTestCase):
    """The versions of Twisted"""

    def test_the_installed_one_is_tested(self) -> None:
        assert twisted.__version__ in TESTED_TWISTED, "run the tests with it, then add it"

    def test_that_of_the_constraints_and_the_lower_bound_are_tested(self) -> None:
        (constrained,) = re.findall(
            r"(?mi)^twisted==(\S+)$", (ROOT / "constraints.txt").read_text()
        )
        assert constrained in TESTED_TWISTED
        (least,) = re.findall(r'"Twisted\[tls\]>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
        assert f"{least}.0" in TESTED_TWISTED


class PageTests(SynchronousTestCase):
    """docs/tuning.md"""

    def test_it_lists_the_tricks(self) -> None:
        (found,) = _MARKED.findall(PAGE.read_text())
        assert found == table(), f"the table between the marks should be:\n{table()}"

    def test_each_has_a_module_and_a_figure(self) -> None:
        for trick in TRICKS:
            import_module(trick.module.removesuffix(".py").replace("/", "."))
            assert re.search(r"\d", trick.figure), trick.name
        assert len({trick.name for trick in TRICKS}) == len(TRICKS)
