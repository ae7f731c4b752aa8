"""Metadata that SQLite takes for sound, with values or columns that a changed bit has damaged."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import Any

from pubsub.errors import StartError
from pubsub.store.log_directory import LogDirectory
from pubsub.store.log_view import LogView
from pubsub.store.metadata import Metadata
from pubsub.store.recovery import recover
from tests.histories import history
from tests.unit.command_case import CommandCase
from tests.unit.raising import raised
from tests.unit.shown_log import numbers, shown

STATE = (
    ("state", "DELETE FROM state"),
    ("state", "UPDATE state SET log_id = 5"),
    ("state", "UPDATE state SET ceiling = 'x'"),
    ("state", "ALTER TABLE state RENAME COLUMN newest_sequence TO newest_sequencf"),
)
OTHERS = (
    ("ended", "ALTER TABLE ended RENAME COLUMN offset TO offsit"),
    ("horizons", "DROP TABLE horizons"),
    ("horizons", "UPDATE horizons SET offset = 'x'"),
    ("epochs", "UPDATE epochs SET mark = 'x' WHERE number = 1"),
    ("segments", "UPDATE segments SET salt = 3 WHERE sequence = 1"),
    ("ended", "UPDATE ended SET offset = 'x'"),
    ("metadata", "UPDATE metadata SET value = 3 WHERE key = 'key 0'"),
)


class DamagedTableTests(CommandCase):
    """The broker and the commands refuse the file, in one line, and a repair makes it again"""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.directory / "history"
        for start in (0, 10):
            with history(self.path) as log:
                log.put("t", numbers(range(start, start + 10)))
                log.put("ended", [b"x"])
                log.end("ended")
                log.store("tokens", f"key {start}", b"value")
        with closing(Metadata(self.path / "metadata.db")) as metadata:
            metadata.set_horizons([("*", 3)])
            # The record in which it was stored has expired.
            metadata.import_rows(items=[("tokens", "old", b"value")])
        self.saved = self.path.rename(self.directory / "saved")
        shutil.copytree(self.saved, self.path)

    def execute(self, statement: str) -> None:
        """Change the metadata."""
        with closing(sqlite3.connect(self.path / "metadata.db")) as connection:
            connection.execute(statement)
            connection.commit()

    def run_on(self, action: str) -> tuple[int, str]:
        """Return the exit code and the output of a command."""
        code, out, err = self.run_it("history", action, "--store", f"log:{self.path}")
        return code, out + err

    def contents(self) -> tuple[Any, list[Any], list[Any], dict[str, int], dict[str, int]]:
        """Return all that a broker takes from the history."""
        with closing(LogView(self.path)) as view:
            metadata = view.metadata
            messages = shown(view.refresh())
            items = sorted(one for one in metadata.items() if one[0] == "tokens")
            return messages, items, metadata.epochs(), metadata.ended(), metadata.horizons()

    def damage_and_repair(self, table: str, statement: str) -> None:
        """Check that the start and ``check`` name the table, and that a repair mends it."""
        shutil.rmtree(self.path)
        shutil.copytree(self.saved, self.path)
        self.execute(statement)
        with closing(LogDirectory(self.path)) as directory:
            reason = str(raised(StartError, recover, directory))
        assert f"metadata.db: the table {table} " in reason, reason
        assert "pubsub history repair" in reason
        code, out = self.run_on("check")
        assert (code, out.count("\n")) == (1, 1), out
        assert f"the table {table} " in out
        assert "rebuild it with pubsub history repair" in out
        code, out = self.run_on("repair")
        assert code == 0, out
        assert "metadata.db cannot be used, and is now metadata.db.damaged" in out
        code, out = self.run_on("check")
        assert code == 0, out

    def test_the_other_tables_are_kept(self) -> None:
        before = self.contents()
        for table, statement in STATE:
            self.damage_and_repair(table, statement)
            assert self.contents() == before, statement

    def test_sound_rows_are_kept(self) -> None:
        for table, statement in OTHERS:
            self.damage_and_repair(table, statement)
            _, items, epochs, ended, _ = self.contents()
            # From the file or, if they are damaged, from the records.
            assert items == [("tokens", key, b"value") for key in ("key 0", "key 10", "old")]
            assert len(epochs) == 2
            assert ended == {"ended": 22}
