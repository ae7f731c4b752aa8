"""What a test needs of the machine. ``scripts/setup dev`` sees to it, so nothing is passed over."""

from __future__ import annotations

from typing import NoReturn

import pytest

SETUP = "scripts/setup dev"
"""What installs everything that can be installed."""


def missing(what: str, line: str = SETUP) -> NoReturn:
    """The machine lacks ``what``; typing ``line`` helps."""
    pytest.fail(f"needs {what}; type: {line}", pytrace=False)
