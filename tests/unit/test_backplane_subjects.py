"""Names of topics as subjects, and the subscriptions that a broker needs."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.messages.coverage import Coverage
from pubsub.backplane.messages.subjects import (
    ROOT,
    name_of,
    subject_of,
    subject_of_prefix,
    wildcards_over,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "scaling.md"
SUBJECTS = [f"{ROOT}.{tail}" for tail in [">", "a", "a.>", "a.-", "a.-.>", "a.b.c", "a.b.>", "b"]]
NAMES = st.text("a/b.*> =_-ä\0\n", min_size=1, max_size=12)


def table(heading: str) -> list[tuple[str, str]]:
    """Return the rows of a table in the document."""
    rows = re.findall(r"^\| `(.*)` \| `(.*)` \|$", DOCUMENT.read_text().split(heading)[1], re.M)
    return [(first, second) for first, second in rows if not second.endswith("|")]


class SubjectTests(SynchronousTestCase):
    """Subjects of names"""

    def test_documented_names(self) -> None:
        found = [row for row in table("| topic | subject |") if not row[1].endswith(">")]
        assert len(found) >= 6
        for name, subject in found:
            assert subject_of(name) == subject
            assert name_of(subject) == name

    def test_documented_prefixes(self) -> None:
        found = [row for row in table("| prefix | subject |") if row[1].endswith(">")]
        assert len(found) >= 4
        for prefix, subject in found:
            assert subject_of_prefix(prefix.encode()) == subject

    @given(NAMES)
    def test_a_name_comes_back(self, name: str) -> None:
        subject = subject_of(name)
        assert name_of(subject) == name
        assert re.fullmatch(r"[A-Za-z0-9_=.-]+", subject)
        assert "" not in subject.split(".")

    @given(NAMES, st.integers(0, 12))
    def test_a_prefix_covers_its_names(self, name: str, length: int) -> None:
        prefix = name.encode()[:length]
        wildcard = subject_of_prefix(prefix)
        assert wildcard in wildcards_over(subject_of(name))

    def test_the_longest_name(self) -> None:
        assert len(subject_of("\0" * 255)) == len(ROOT) + 1 + 3 * 255

    def test_other_subjects_have_no_name(self) -> None:
        for subject in ("", ROOT, "other.a", f"{ROOT}.", f"{ROOT}.a..b", f"{ROOT}.=4", f"{ROOT}.ä",
                        f"{ROOT}.=ff", f"{ROOT}.=61", f"{ROOT}.=FF", f"{ROOT}.a b",
                        f"{ROOT}.{'a' * 256}"):  # fmt: skip
            assert name_of(subject) is None, subject


class CoverageTests(SynchronousTestCase):
    """Nothing is subscribed to twice"""

    def test_a_wildcard_replaces_the_subjects_it_covers(self) -> None:
        coverage = Coverage()
        assert coverage.add("r.a.b") == (["r.a.b"], [])
        assert coverage.add("r.a.b") == ([], [])
        assert coverage.add("r.c") == (["r.c"], [])
        assert coverage.add(f"{ROOT}.a.b") == ([f"{ROOT}.a.b"], [])
        assert coverage.add(f"{ROOT}.a.>") == ([f"{ROOT}.a.>"], [f"{ROOT}.a.b"])
        assert coverage.add(f"{ROOT}.a.c") == ([], [])
        assert coverage.add(f"{ROOT}.>") == ([f"{ROOT}.>"], [f"{ROOT}.a.>"])
        assert coverage.discard(f"{ROOT}.a.c") == ([], [])
        assert coverage.discard(f"{ROOT}.>") == ([f"{ROOT}.a.>"], [f"{ROOT}.>"])
        assert coverage.discard(f"{ROOT}.a.>") == ([f"{ROOT}.a.b"], [f"{ROOT}.a.>"])

    @given(st.lists(st.tuples(st.booleans(), st.sampled_from(SUBJECTS))))
    def test_active_subjects_cover_each_wanted_topic_once(
        self, steps: list[tuple[bool, str]]
    ) -> None:
        coverage = Coverage()
        wanted: set[str] = set()
        active: set[str] = set()
        for adds, subject in steps:
            (wanted.add if adds else wanted.discard)(subject)
            beginning, ending = (coverage.add if adds else coverage.discard)(subject)
            active |= set(beginning)
            active -= set(ending)
            least = {one for one in wanted if wanted.isdisjoint(wildcards_over(one))}
            assert active == coverage.active == least
