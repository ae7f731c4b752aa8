"""``WholeNumber``: a count, or a size in bytes."""

from __future__ import annotations

import sys
from typing import Any

import click


class WholeNumber(click.IntRange):
    """A whole number from ``low`` to ``most``, by default what a container can count."""

    name = "whole number"

    def __init__(self, low: int, most: int = sys.maxsize) -> None:
        # The range that the help shows has no end: no one needs it.
        super().__init__(low)
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See ``click.ParamType``."""
        number: int = super().convert(value, param, ctx)
        if number > self._most:
            self.fail(f"expected a whole number, at most {self._most}, not {value}", param, ctx)
        return number
