"""The start and end of reading: ``earliest``, ``latest``, an offset, or a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

# More than any offset has.
_MOST_DIGITS = 20
_AGO = re.compile(r"(\d{1,12})(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class StartPosition:
    """A place in the history: one of the members, or none for ``latest``.

    ``timestamp`` is in µs since the Unix epoch, ``ago`` in seconds before now.
    """

    earliest: bool = False
    offset: int | None = None
    timestamp: int | None = None
    ago: int | None = None

    @property
    def latest(self) -> bool:
        """True for the end of the history."""
        return self == LATEST

    def moment(self, now: float) -> int | None:
        """Return the time in µs, None if the position is not a time. ``now`` is in seconds."""
        return self.timestamp if self.ago is None else int((now - self.ago) * 1_000_000)


LATEST = StartPosition()
EARLIEST = StartPosition(earliest=True)


class PositionType(click.ParamType[StartPosition]):
    """earliest, latest, an offset, a time with a zone, or how long ago."""

    name = "position"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See click.ParamType."""
        return "earliest|latest|OFFSET|TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> StartPosition:
        """See click.ParamType."""
        if isinstance(value, StartPosition):
            return value
        found = parse(value)
        if found is None:
            self.fail(
                f"expected earliest, latest, an offset, a time such as 2026-01-31T12:00:00Z, or "
                f"10m for ten minutes ago, not {value!r}",
                param,
                ctx,
            )
        return found

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """See click.ParamType."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(n) for n in ("earliest", "latest") if n.startswith(incomplete)]


def parse(text: str) -> StartPosition | None:
    """Return the position that ``text`` names, or None. A time without a zone is in UTC."""
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if text.isascii() and text.isdecimal():
        return StartPosition(offset=int(text)) if len(text) < _MOST_DIGITS else None
    if ago := _AGO.fullmatch(text):
        return StartPosition(ago=int(ago[1]) * _UNITS[ago[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return StartPosition(timestamp=max(round(moment.timestamp() * 1_000_000), 0))
    except (OverflowError, ValueError):
        return None


def offset_of(
    position: StartPosition, bounds: Callable[[int | None], dict[str, Any]], now: float
) -> int:
    """Return the offset of ``position``; ``bounds`` asks the HTTP API."""
    if position.offset is not None:
        return position.offset
    found = bounds(position.moment(now))
    key = "first" if position.earliest else "next" if position.latest else "offset"
    return int(found[key])
