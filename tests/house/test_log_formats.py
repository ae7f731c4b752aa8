"""Log formats: the fields that a format names are those that are passed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

PACKAGE = Path(__file__).parents[2] / "pubsub"
# Twisted's, and what the process's observers read (``pubsub/server/log_lines.py``).
NOT_SHOWN = {"failure", "connection", "unlimited"}
METHODS = {"debug", "info", "warn", "error", "critical", "failure"}


def log_calls(path: Path) -> Iterator[ast.Call]:
    """Return the calls of a logger in a file with a literal format and keyword fields."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in METHODS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "log"
            and isinstance(node.args[0], ast.Constant)
            and all(keyword.arg for keyword in node.keywords)
        ):
            yield node


def named(text: str) -> set[str]:
    """Return the fields that a format names."""
    return {name.split(".")[0] for _, name, _, _ in Formatter().parse(text) if name}


class FormatTests(SynchronousTestCase):
    """Calls of twisted.logger"""

    def test_fields_and_formats_agree(self) -> None:
        found = 0
        for path in sorted(PACKAGE.rglob("*.py")):
            for call in log_calls(path):
                text = ast.literal_eval(call.args[0])
                passed = {str(keyword.arg) for keyword in call.keywords} - NOT_SHOWN
                assert named(text) == passed, f"{path.name}:{call.lineno}: {text}"
                found += 1
        assert found > 20

    def test_the_methods_are_those_of_logger(self) -> None:
        assert all(callable(getattr(Logger, name)) for name in METHODS)
