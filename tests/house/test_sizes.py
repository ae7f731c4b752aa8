"""The sizes of files and functions: a file is about one thing, a function is read at a glance."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parents[2]
FILE_LINES = 350
FUNCTION_LINES = 50
LONGER_FILES = {
    # The functions of the kernel are compiled together, so that they call each other as C does.
    "pubsub/kernel/compiled.pyx": 2000,
    # One object owns the connection to the engine and everything that waits for it.
    "pubsub/backplane/engine/nats_connection.py": 440,
}
"""Files that may be longer, and how long; each with the reason."""


def sources(*directories: str, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    """Yield the source files in ``directories``."""
    for directory in directories:
        for path in sorted((ROOT / directory).rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


def long_functions(path: Path) -> Iterator[str]:
    """Yield the functions of a file that are too long, with their first line and length."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines"


class SizeTests(SynchronousTestCase):
    """Files of the package, and functions of all code in Python"""

    def test_files_are_short(self) -> None:
        found = []
        for path in sources("pubsub", suffixes=(".py", ".pyx", ".pxi")):
            name = path.relative_to(ROOT).as_posix()
            lines = len(path.read_text().splitlines())
            if lines > LONGER_FILES.get(name, FILE_LINES):
                found.append(f"{name} has {lines} lines")
        assert not found, "split these by their responsibilities:\n" + "\n".join(found)

    def test_functions_are_short(self) -> None:
        paths = sources("pubsub", "twisted", "scripts", "tests")
        found = [text for path in paths for text in long_functions(path)]
        assert not found, "split these:\n" + "\n".join(found)
