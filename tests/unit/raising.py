"""Errors as values, for tests of their texts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

_Error = TypeVar("_Error", bound=BaseException)


def raised(kind: type[_Error], function: Callable[..., Any], *given: Any, **named: Any) -> _Error:
    """Return the error that a call raises, which must be of this kind."""
    with pytest.raises(kind) as caught:
        function(*given, **named)
    return caught.value


def sqlite_error(text: str, code: int) -> sqlite3.OperationalError:
    """Return an error of SQLite."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error
