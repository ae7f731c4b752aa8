"""Changes of the metadata that wait while SQLite cannot write them."""

from __future__ import annotations

import sqlite3
from unittest import mock

from pubsub.store.commits import metadata_copy
from tests.unit.logs import Log, LogCase, numbered
from tests.unit.streams import logged


class WaitingTests(LogCase):
    """Clients may change the same values again and again meanwhile"""

    def setUp(self) -> None:
        super().setUp()
        self.patch(metadata_copy, "_MOST", 10)
        self.opened = self.log()
        logged(self)
        broken = mock.patch.object(
            self.opened.metadata, "apply", side_effect=sqlite3.OperationalError("disk I/O error")
        )
        broken.start()
        self.works_again = broken.stop

    def fill(self) -> None:
        """Change three values a hundred times; a topic ends each time."""
        for number in range(100):
            puts: dict[str, bytes | None] = {"gone": b"x" if number < 99 else None}
            puts[f"key {number % 2}"] = b"%d" % number
            self.opened.commit(numbered(number, number + 1), puts=puts, sync=True)
            self.opened.end("t")
            self.opened.sync()

    def check(self, log: Log) -> None:
        """Check that the last changes have an effect, and no others."""
        assert log.items() == {"first": b"1", "key 0": b"98", "key 1": b"99"}
        assert log.metadata.ended() == {"t": 100}

    def test_few_are_kept(self) -> None:
        self.opened.commit(numbered(0, 0), puts={"first": b"1"}, sync=True)
        self.fill()
        waiting = self.opened.writer._copy.waiting
        assert sum(len(one.operations) for one in waiting) <= 20
        crashed = self.copy()
        self.works_again()
        self.opened.commit(numbered(100, 101), sync=True)
        assert self.opened.writer.metadata_failing is None
        self.check(self.opened)
        # A broker that was killed takes all of them from the records.
        self.check(self.log(crashed))

    def test_many_different_values_are_all_kept(self) -> None:
        expected = {f"{number}": b"x" for number in range(100)}
        for key, value in expected.items():
            self.opened.commit(puts={key: value}, sync=True)
        crashed = self.copy()
        self.works_again()
        self.opened.commit(numbered(0, 1), sync=True)
        assert self.opened.items() == self.log(crashed).items() == expected
