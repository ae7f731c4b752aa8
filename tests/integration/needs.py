"""Requirements of tests, and the messages when the machine lacks them."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Fail because the machine lacks ``what``, a program that the set-up installs."""
    pytest.fail(f"needs {what}; type: scripts/setup dev", pytrace=False)


def not_allowed(what: str) -> NoReturn:
    """Skip the test because only root may make ``what``; in CI, fail."""
    text = f"needs {what}; type: sudo .venv/bin/pytest tests/integration"
    if os.environ.get("CI"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)
