"""The rows of a damaged table of SQLite, also those between damaged pages.

SQLite reads no row behind a damaged page. It reads from both ends of a table up to the first one,
and from any key between that is not on one. Which keys there are is not known, so they are searched
by halving the range of keys that is left.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from sys import maxunicode
from typing import Any, NamedTuple

# Keys that are tried in a table, at most. A page is found if it has about a thousandth of the keys.
_PROBES = 2000
# Characters behind those that two places share, by which the one between them is made.
_PRECISION = 8
# A number is eight characters of a place, and the largest character is behind all keys.
_DIGITS, _SIGN, _LAST = 8, 1 << 63, chr(maxunicode)
_KeyedRow = tuple[Any, ...]


class KeyedTable(NamedTuple):
    """A table, its columns with their types, and the number of those that are its key.

    These are the first ones; a row is sound if its values have the types.
    """

    name: str
    columns: Sequence[tuple[str, type]]
    keys: int

    def is_sound(self, row: _KeyedRow) -> bool:
        """Return whether the values of ``row`` have the types of the columns."""
        return [type(value) for value in row] == [kind for _, kind in self.columns]

    def place(self, row: _KeyedRow) -> str:
        """Return a text that is ordered as the keys of the rows are."""
        # No key but the last may be ambiguous at its end.
        return "".join(
            [_digits(key) if isinstance(key, int) else key + "\0" for key in row[: self.keys]]
        )

    def key(self, place: str) -> _KeyedRow:
        """Return the key at ``place``, or one near it if no key has this place."""
        found: list[int | str] = []
        for _, kind in self.columns[: self.keys]:
            if kind is int:
                digits = [min(ord(digit), 255) for digit in place[:_DIGITS].ljust(_DIGITS, "\0")]
                found.append(int.from_bytes(bytes(digits), "big") - _SIGN)
                place = place[_DIGITS:]
            else:
                text, _, place = place.partition("\0")
                found.append(text)
        return tuple(found)


def salvage(connection: sqlite3.Connection, table: KeyedTable) -> list[_KeyedRow]:
    """Return the sound rows that can be read, in the order of their keys."""
    search = _Search(connection, table)
    gaps: deque[tuple[str, str]] = deque()
    low = search.read(None, None, "ASC")
    if low is not None:
        high = search.read(None, None, "DESC")
        ends = (low, high or _LAST)
        gaps.extend(_parts(*ends) if low or high or table.columns[0][1] is str else _of_numbers())
    for _ in range(_PROBES):
        if not gaps:
            break
        low, high = gaps.popleft()
        middle = table.place(table.key(_between(low, high, search.digits)))
        if not low < middle < high:
            continue
        left, right = search.read(low, middle, "DESC"), search.read(middle, high, "ASC")
        if left is not None:
            gaps.append((low, left or middle))
        if right is not None:
            gaps.append((right or middle, high))
    return [search.found[key] for key in sorted(search.found)]


class _Search:
    """Reads rows of ``table``; ``found`` has them by their keys."""

    def __init__(self, connection: sqlite3.Connection, table: KeyedTable) -> None:
        self.found: dict[_KeyedRow, _KeyedRow] = {}
        # The characters of the places that are tried: if keys are texts, those of the rows before.
        self.digits = "".join(map(chr, range(256)))
        self._used = {"\0"}
        self._connection, self._table = connection, table

    def read(self, low: str | None, high: str | None, direction: str) -> str | None:
        """Read in this direction; return the place of the last row, or None at the end.

        It is empty if no row was read before the damage.
        """
        columns = self._table.columns
        keys = columns[: self._table.keys]
        # With any other expression than this, SQLite looks for the first column only.
        given = ", ".join("?" for _ in keys)
        names = ", ".join(name for name, _ in keys)
        bounds = [(f"({names}) >= ({given})", low), (f"({names}) < ({given})", high)]
        where = " AND ".join(text for text, at in bounds if at is not None) or "TRUE"
        values = [one for _, at in bounds if at is not None for one in self._table.key(at)]
        order = ", ".join(f"{name} {direction}" for name, _ in keys)
        shown = ", ".join(name for name, _ in columns)
        query = f"SELECT {shown} FROM {self._table.name} WHERE {where} ORDER BY {order}"
        last = ""
        with suppress(sqlite3.Error):
            for row in self._connection.execute(query, values):
                if self._table.is_sound(row):
                    last = self._table.place(row)
                    self.found[row[: self._table.keys]] = row
                    self._used.update(last)
            return None
        if len(self._used) > 1 and keys[0][1] is str:
            self.digits = "".join(sorted(self._used))
        return last


def _digits(number: int) -> str:
    return (number + _SIGN).to_bytes(_DIGITS, "big").decode("latin-1")


def _of_numbers() -> Iterator[tuple[str, str]]:
    """Divide the range of numbers of which none is known: most are small."""
    return pairwise(["", _digits(0), *[_digits(1 << bits) for bits in range(63)], _LAST])


def _parts(low: str, high: str) -> Iterator[tuple[str, str]]:
    """Divide a range of places where others begin as its ends do: so do most keys of a table."""
    places = {high[:size] for size in range(1, len(high))}
    places |= {low[:size] + _LAST for size in range(len(low))}
    within = sorted(place for place in places if low < place < high)
    return pairwise((low, *within, high))


def _between(low: str, high: str, digits: str) -> str:
    """Return a place between two others, of these ``digits``; one of them if they are too near."""
    shared = 0
    while shared < min(len(low), len(high)) and low[shared] == high[shared]:
        shared += 1
    size, base = shared + _PRECISION, len(digits)
    numbers = []
    for place in (low, high):
        number, is_exact = 0, True
        for digit in place[:size].ljust(size, "\0"):
            at = bisect_right(digits, digit) - 1 if is_exact else base - 1
            # Behind a digit that there is not, the largest ones are nearest.
            is_exact = is_exact and digits[at] == digit
            number = number * base + at
        numbers.append(number)
    left = sum(numbers) // 2
    found: list[str] = []
    while len(found) < size:
        left, at = divmod(left, base)
        found.append(digits[at])
    return "".join(found[::-1])
