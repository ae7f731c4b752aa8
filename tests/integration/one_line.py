"""The one line of a start that fails."""

from __future__ import annotations

import re
import subprocess

from tests.integration.broker import DEFECTS

LINE = re.compile(r"pubsub: [^\n]+\n")


def assert_one_line(result: subprocess.CompletedProcess[str], about: str) -> None:
    """Check that standard error is one line that begins ``pubsub: `` and contains ``about``."""
    assert LINE.fullmatch(result.stderr), (result.stdout, result.stderr)
    assert about in result.stderr
    assert not any(word in result.stdout + result.stderr for word in DEFECTS)
    assert result.returncode == 1
