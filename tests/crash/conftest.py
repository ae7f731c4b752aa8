"""Fixtures of the crash tests."""

from __future__ import annotations

import shutil

import pytest

from tests.integration.needs import missing


@pytest.fixture
def compiler() -> None:
    """Require a C compiler for ``disk.c``."""
    if shutil.which("gcc") is None:
        missing("a C compiler (gcc)")
