"""The output of lists: a table on a terminal, else columns separated by tabs, or JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import click

from pubsub.broker.visible_text import visible
from pubsub.commands.json_output import echo_json

TableRow = Mapping[str, Any]
# Columns between two columns of a table, and those that a column of long text has.
_GAP, _TEXT = 2, 24


class Column(NamedTuple):
    """A column: its title, the member of a row, and how people see it.

    On a terminal, long text that is too wide for its column continues on the next line.
    """

    title: str
    member: str
    shown: Callable[[Any], str] = str
    is_number: bool = False
    is_long: bool = False


def text(title: str, member: str) -> Column:
    """Return a column of text that clients choose, which can be long."""
    return Column(title, member, is_long=True)


def number(title: str, member: str) -> Column:
    """Return a column of numbers."""
    return Column(title, member, lambda value: f"{value:,}", True)


def size(title: str, member: str) -> Column:
    """Return a column of bytes."""
    return Column(title, member, bytes_text, True)


def bytes_text(value: float) -> str:
    """Return bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def time_text(microseconds: int | None) -> str:
    """Return a time in µs since the Unix epoch as local time."""
    if not microseconds:
        return ""
    return datetime.fromtimestamp(microseconds / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def print_rows(columns: Sequence[Column], rows: Iterable[TableRow], as_json: bool) -> None:
    """Print rows; without a terminal the members of the columns, separated by tabs."""
    if as_json:
        for row in rows:
            echo_json(row)
    elif sys.stdout.isatty():
        _print_table(columns, rows)
    else:
        for row in rows:
            click.echo("\t".join(visible(_plain(row[one.member])) for one in columns))


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _print_table(columns: Sequence[Column], rows: Iterable[TableRow]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[visible(one.shown(row[one.member])) for one in columns] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    needed = 0
    for index, one in enumerate(columns):
        widest = max(map(cell_len, [one.title, *(line[index] for line in cells)]))
        needed += _GAP + (min(widest, _TEXT) if one.is_long else widest)
        table.add_column(
            one.title, justify="right" if one.is_number else "left", overflow="fold",
            no_wrap=not one.is_long,
        )  # fmt: skip
    for line in cells:
        table.add_row(*map(Text, line))
    # Values are arguments of other commands: a terminal that is too narrow wraps the lines, and
    # nothing is cut off.
    console = Console()
    console.width = max(console.width, needed)
    console.print(table)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one a line."""
    found = list(facts)
    width = max((len(name) for name, _ in found), default=0)
    for name, value in found:
        click.echo(f"{name:<{width}}  {visible(value)}")
