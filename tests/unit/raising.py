"""Errors as values, for tests of their texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

_Error = TypeVar("_Error", bound=BaseException)


def raised(kind: type[_Error], function: Callable[..., Any], *given: Any, **named: Any) -> _Error:
    """Return the error that a call raises, which must be of this kind."""
    with pytest.raises(kind) as caught:
        function(*given, **named)
    return caught.value
