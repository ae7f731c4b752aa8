"""Write tables into a document between ``<!-- peers: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.bench import BenchError


def replace(text: str, name: str, content: str) -> str:
    """Return ``text`` with ``content`` between the marks of ``name``. Raises BenchError without
    them.
    """
    marks = re.compile(rf"(<!-- peers: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    replaced, count = marks.subn(lambda found: f"{found[1]}\n{content}\n\n{found[2]}", text)
    if count != 1:
        raise BenchError(f"there are {count} places marked for {name}")
    return replaced


def update(path: Path, sections: Sequence[tuple[str, str]]) -> None:
    """Write each section between its marks."""
    text = path.read_text()
    for name, content in sections:
        text = replace(text, name, content)
    path.write_text(text)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first hold numbers."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def millions(rate: float) -> str:
    """Format ``rate`` in millions, to three digits."""
    return f"{rate / 1e6:#.3g}".rstrip(".")
