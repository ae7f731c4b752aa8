"""The rows of a damaged table of SQLite that lie between its damaged pages."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.metadata.row_salvage import KeyedTable, salvage
from tests.unit.fakes import scratch

_PAGE = 4096
# The type of a page that has rows and no keys of other pages.
_LEAF = 10


class SalvageTests(SynchronousTestCase):
    """``salvage``"""

    def check(self, keys: Sequence[Any], *damaged: int) -> None:
        """Only the rows of ``damaged`` pages are lost, and those beside that only they lead to.

        The pages are numbered in the order of their rows.
        """
        path = scratch(self) / "rows.db"
        is_text = isinstance(keys[0], str)
        rows = [(key, b"<%06d>" % n + bytes(92)) for n, key in enumerate(sorted(keys))]
        with closing(sqlite3.connect(path)) as made:
            kind = "TEXT" if is_text else "INTEGER"
            made.execute(f"PRAGMA page_size = {_PAGE}")
            made.execute(f"CREATE TABLE t (k {kind}, v BLOB, PRIMARY KEY (k)) WITHOUT ROWID")
            made.executemany("INSERT INTO t VALUES (?, ?)", rows)
            made.commit()
        data = bytearray(path.read_bytes())
        pages: list[tuple[list[int], int]] = []
        for at in range(_PAGE, len(data), _PAGE):
            if data[at] == _LEAF:
                numbers = re.findall(rb"<(\d{6})>", data[at : at + _PAGE])
                pages.append((sorted(map(int, numbers)), at))
        assert len(pages) > 10
        pages.sort()
        beside: set[int] = set()
        for place in damaged:
            numbers, at = pages[place]
            beside.update(range(numbers[0] - 1, numbers[-1] + 2))
            data[at : at + _PAGE] = bytes(_PAGE)
        path.write_bytes(data)
        table = KeyedTable("t", [("k", str if is_text else int), ("v", bytes)], 1)
        with closing(sqlite3.connect(path)) as connection:
            saved = salvage(connection, table)
        found = set(saved)
        assert saved == [row for row in rows if row in found]
        assert {n for n, row in enumerate(rows) if row not in found} <= beside

    def test_between_damaged_pages(self) -> None:
        self.check([f"orders/{number:05}" for number in range(800)], 3, 7, 8, 12)
        self.check(range(800), 3, 7, 8, 12)

    def test_between_the_first_page_and_the_last_one(self) -> None:
        self.check(range(800), 0, -1)
        self.check([1000 * number for number in range(800)], 0, -1)

    def test_keys_in_other_alphabets(self) -> None:
        random = Random(5)
        for letters in ("äöüß", "абвгд", "\u4e2d\u65e5\ufffd\U0001f600"):
            keys = {"".join(random.choices(letters + "az", k=9)) for _ in range(800)}
            self.check(sorted(keys), 0, 4, 9, -1)
            self.check(sorted(keys), 0, -1)
            self.check(sorted(keys), 3, -1)

    def test_numbers_of_both_signs(self) -> None:
        random = Random(5)
        self.check(sorted({random.randrange(-(2**63), 2**63) for _ in range(800)}), 0, 5, -1)
