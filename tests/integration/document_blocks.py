"""The fenced blocks of the documents, and how each is run.

An HTML comment before a block says how, where its language does not:

======================= ================================================================
``not run: REASON``     it is not run, for this reason
``run by: PATH``        another test runs it
``run: pytest``         a test file, for pytest without pytest-twisted
``run: pytest-twisted`` a test file, for pytest with it
``run: trial``          a test file, for trial
``run: unittest``       a test file, for unittest
``file: NAME``          a file in the page's directory, for the blocks after it
``output``              what the block before it prints; ``...`` stands for anything
======================= ================================================================

Blocks without a language, and those of ``text`` and ``mermaid``, are no code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(p for d in ("docs", "seeds") for p in (ROOT / d).rglob("*.md"))]
)
NO_CODE = ("", "text", "mermaid")
_BLOCK = re.compile(
    r"(?:^<!-- *(?P<note>[^\n]*?) *-->\n\s*)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block. ``note`` is the comment before it, ``line`` that of the block's first line."""

    page: Path
    line: int
    language: str
    note: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether the page's test runs it."""
        if self.is_marked:
            return False
        return self.language not in NO_CODE or self.note.startswith(("output", "file:", "run:"))

    @property
    def is_marked(self) -> bool:
        """Whether its comment says that the page's test does not run it."""
        return self.note.startswith(("not run:", "run by:"))


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks of ``page`` in order."""
    return parse(page, page.read_text())


def parse(page: Path, whole: str) -> Iterator[Block]:
    """Return the blocks in the text of ``page``."""
    for found in _BLOCK.finditer(whole):
        line = whole.count("\n", 0, found.start("text")) + 1
        text = re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        yield Block(page, line, found["language"], found["note"] or "", text)
