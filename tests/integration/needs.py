"""What a test needs of the machine, and what is said where it is not there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """The machine lacks ``what``, which the set-up installs."""
    pytest.fail(f"needs {what}; type: scripts/setup dev", pytrace=False)


def not_allowed(what: str) -> NoReturn:
    """Only root may make ``what``: the test is left out, with a line at the end, but for CI."""
    text = f"needs {what}; type: sudo .venv/bin/pytest tests/integration"
    if os.environ.get("CI"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)
