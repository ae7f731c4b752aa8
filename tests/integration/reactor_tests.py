"""Tests that run in the reactor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import pytest_twisted  # type: ignore[import-untyped]

_Test = TypeVar("_Test", bound=Callable[..., Awaitable[None]])


def in_reactor(test: _Test) -> _Test:
    """Run a coroutine test in the reactor (pytest-twisted has no types)."""
    return cast(_Test, pytest_twisted.ensureDeferred(test))
