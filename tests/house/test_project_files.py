"""Files that pyproject.toml refers to: fragments of the changelog, paths without coverage."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parent.parent.parent


class FragmentTests(SynchronousTestCase):
    """Checks that towncrier does not make"""

    def setUp(self) -> None:
        with open(ROOT / "pyproject.toml", "rb") as file:
            self.tool = tomllib.load(file)["tool"]
        self.directory = ROOT / self.tool["towncrier"]["directory"]
        self.fragments = sorted(self.directory.glob("*.md"))

    def test_each_has_a_category(self) -> None:
        categories = "|".join(kind["directory"] for kind in self.tool["towncrier"]["type"])
        for path in self.fragments:
            assert re.fullmatch(rf"\+[a-z0-9-]+\.({categories})\.md", path.name), path.name

    def test_there_are_no_other_files(self) -> None:
        template = ROOT / self.tool["towncrier"]["template"]
        assert {*self.directory.iterdir()} == {*self.fragments, template}

    def test_each_consists_of_sentences(self) -> None:
        width = self.tool["ruff"]["line-length"]
        for path in self.fragments:
            text = path.read_text()
            assert text.endswith(".\n"), f"{path.name}: end with a full stop and a newline"
            assert text == text.strip() + "\n", f"{path.name}: remove the blank lines"
            assert max(map(len, text.splitlines())) <= width, f"{path.name}: wrap at {width}"


class CoverageTests(SynchronousTestCase):
    """The paths that the coverage leaves out"""

    def test_they_exist(self) -> None:
        with open(ROOT / "pyproject.toml", "rb") as file:
            omitted = tomllib.load(file)["tool"]["coverage"]["run"]["omit"]
        assert [pattern for pattern in omitted if not list(ROOT.glob(pattern))] == []
