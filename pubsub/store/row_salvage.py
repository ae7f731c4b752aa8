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
from typing import Any, NamedTuple

# Keys that are tried in a table, at most. A page is found if it has about a thousandth of the keys.
_PROBES = 2000
# Bytes behind those that two keys share, by which the one between them is made.
_PRECISION = 8
_SIGN = 1 << 63
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

    def place(self, row: _KeyedRow) -> bytes:
        """Return bytes that are ordered as the keys of the rows are."""
        parts = []
        for value in row[: self.keys]:
            is_number = isinstance(value, int)
            # No key but the last may be ambiguous at its end.
            parts.append(
                (value + _SIGN).to_bytes(8, "big") if is_number else value.encode() + b"\0"
            )
        return b"".join(parts)

    def key(self, place: bytes) -> _KeyedRow:
        """Return a key at ``place`` or near it, as not every place is that of a text in UTF-8."""
        found: list[int | str] = []
        for _, kind in self.columns[: self.keys]:
            if kind is int:
                found.append(int.from_bytes(place[:8].ljust(8, b"\0"), "big") - _SIGN)
                place = place[8:]
            else:
                text, _, place = place.partition(b"\0")
                found.append(text.decode(errors="replace"))
        return tuple(found)


def salvage(connection: sqlite3.Connection, table: KeyedTable) -> list[_KeyedRow]:
    """Return the sound rows that can be read, in the order of their keys."""
    search = _Search(connection, table)
    gaps: deque[tuple[bytes, bytes]] = deque()
    low = search.read(None, None, "ASC")
    if low is not None:
        high = search.read(None, None, "DESC")
        gaps.extend(_parts(low, high or b"\xff" * _PRECISION))
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
        # The bytes of the places that are tried: if keys are texts, those of the rows before.
        self.digits = bytes(range(256))
        self._used = {0}
        self._connection, self._table = connection, table

    def read(self, low: bytes | None, high: bytes | None, direction: str) -> bytes | None:
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
        last = b""
        with suppress(sqlite3.Error):
            for row in self._connection.execute(query, values):
                if self._table.is_sound(row):
                    last = self._table.place(row)
                    self.found[row[: self._table.keys]] = row
                    self._used.update(last)
            return None
        if len(self._used) > 1 and keys[0][1] is str:
            self.digits = bytes(sorted(self._used))
        return last


def _parts(low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Divide a range of places where others begin as its ends do: so do most keys of a table."""
    places = {high[:size] for size in range(1, len(high))}
    places |= {low[:size] + b"\xff" for size in range(len(low))}
    within = sorted(place for place in places if low < place < high)
    return pairwise((low, *within, high))


def _between(low: bytes, high: bytes, digits: bytes) -> bytes:
    """Return a place between two others, of these ``digits``; one of them if they are too near."""
    shared = 0
    while shared < min(len(low), len(high)) and low[shared] == high[shared]:
        shared += 1
    size, base = shared + _PRECISION, len(digits)
    numbers = []
    for place in (low, high):
        number = 0
        for byte in place[:size].ljust(size, b"\0"):
            number = number * base + bisect_right(digits, byte) - 1
        numbers.append(number)
    left, found = sum(numbers) // 2, bytearray()
    while len(found) < size:
        left, digit = divmod(left, base)
        found.append(digits[digit])
    return bytes(found[::-1])
