"""``PositiveNumber``: a rate, or a time in seconds."""

from __future__ import annotations

import math
from typing import Any

import click


class PositiveNumber(click.FloatRange):
    """A finite number above 0."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See ``click.ParamType``."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"expected a finite number, not {value}", param, ctx)
        return number


rate_option = click.option(
    "--rate", "-r", type=PositiveNumber(), metavar="N", help="Publish N messages a second."
)
