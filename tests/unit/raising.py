"""Errors as values, for tests that look at what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

_Error = TypeVar("_Error", bound=BaseException)


def raised(kind: type[_Error], function: Callable[..., Any], *given: Any, **named: Any) -> _Error:
    """The error that a call raises, which has to be of this kind."""
    with pytest.raises(kind) as caught:
        function(*given, **named)
    return caught.value
