"""Metadata that SQLite takes for sound, with values or columns that a changed bit has damaged."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import Any

from pubsub.errors import StartError
from pubsub.store.disk_remedies import history_command
from pubsub.store.metadata.metadata import Epoch, Metadata
from pubsub.store.opening.recovery import recover
from pubsub.store.reading.log_view import LogView
from pubsub.store.segments.log_directory import LogDirectory
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
# Those of rows that no record has.
ROWS = (
    ("ended", "UPDATE ended SET offset = 'x' WHERE topic = 'old'"),
    ("horizons", "UPDATE horizons SET offset = 'x'"),
    ("epochs", "UPDATE epochs SET mark = 'x' WHERE number = 0"),
    ("segments", "UPDATE segments SET salt = 3 WHERE sequence = 1"),
    ("metadata", "UPDATE metadata SET value = 3 WHERE key = 'old'"),
)
TABLES = (
    ("ended", "ALTER TABLE ended RENAME COLUMN offset TO offsit"),
    ("horizons", "DROP TABLE horizons"),
)
# Found where the rows are read.
TEXTS = (
    ("metadata", "UPDATE metadata SET key = CAST(x'ff' AS TEXT) WHERE key = 'old'"),
    ("ended", "UPDATE ended SET topic = CAST(x'ff' AS TEXT) WHERE topic = 'old'"),
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
            metadata.set_horizons([("*", 0)])
            # Those of which the records have expired.
            metadata.import_rows(
                [("tokens", "old", b"value")], [Epoch(0, 0, 0, 1, bytes(16))], {"old": 2}
            )
        self.before = self.contents()
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

    def damage(self, statement: str) -> None:
        """Damage the history of ``setUp``."""
        shutil.rmtree(self.path)
        shutil.copytree(self.saved, self.path)
        self.execute(statement)

    def check_refusal(self, table: str) -> None:
        """Check that the start and ``check`` name the table."""
        with closing(LogDirectory(self.path)) as directory:
            reason = str(raised(StartError, recover, directory))
        assert f"metadata.db: the table {table} " in reason, reason
        assert history_command("repair", self.path) in reason
        code, out = self.run_on("check")
        assert (code, out.count("\n")) == (1, 1), out
        assert f"the table {table} " in out
        assert f"rebuild it with {history_command('repair', self.path)}" in out

    def check_repair(self, *kept: str, reason: str = "the table ") -> None:
        """Check that a repair mends the file, and keeps rows of these tables."""
        code, out = self.run_on("repair")
        assert code == 0, out
        assert f"metadata.db cannot be used, and is now metadata.db.damaged: {reason}" in out
        code, out = self.run_on("check")
        assert code == 0, out
        messages, items, epochs, ended, horizons = self.contents()
        assert messages == self.before[0]
        old = [] if "metadata" not in kept else [("tokens", "old", b"value")]
        assert items == [("tokens", key, b"value") for key in ("key 0", "key 10")] + old
        assert [one.number for one in epochs] == ([0, 1, 2] if "epochs" in kept else [1, 2])
        assert ended == ({"old": 2} if "ended" in kept else {}) | {"ended": 22}
        assert horizons == ({"*": 0} if "horizons" in kept else {})

    def test_the_other_tables_are_kept(self) -> None:
        for table, statement in (*STATE, *TABLES):
            self.damage(statement)
            self.check_refusal(table)
            self.check_repair(*{"metadata", "epochs", "ended", "horizons"} - {table})

    def test_sound_rows_are_kept(self) -> None:
        for table, statement in ROWS:
            self.damage(statement)
            self.check_refusal(table)
            self.check_repair(*{"metadata", "epochs", "ended", "horizons"} - {table})

    def test_texts_that_are_not_utf_8(self) -> None:
        for table, statement in TEXTS:
            self.damage(statement)
            assert self.run_on("check")[0] == 1
            self.check_repair(*{"metadata", "epochs", "ended", "horizons"} - {table})

    def change_header(self, position: int, value: int) -> None:
        """Change a byte of the header of metadata.db."""
        path = self.path / "metadata.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = bytearray(path.read_bytes())
        data[position] = value
        path.write_bytes(data)

    def test_a_header_that_makes_the_file_read_only(self) -> None:
        self.change_header(18, 3)
        with closing(LogDirectory(self.path)) as directory:
            reason = str(raised(StartError, recover, directory))
        problem = "its header says that it is read-only (write version 3)"
        assert f"metadata.db: {problem}; restore it" in reason
        assert history_command("repair", self.path) in reason
        code, out = self.run_on("check")
        assert (code, out.splitlines()[0]) == (1, f"metadata.db: {problem}")
        self.check_repair("metadata", "epochs", "ended", "horizons", reason=problem)
        with history(self.path) as log:
            log.store("tokens", "key", b"new")
        assert ("tokens", "key", b"new") in self.contents()[1]

    def test_damage_that_sqlite_sees(self) -> None:
        # The number of free pages.
        self.change_header(39, 1)
        code, out = self.run_on("check")
        assert (code, out.startswith("metadata.db: ")) == (1, True), out
        reason = out.splitlines()[0].removeprefix("metadata.db: ")
        self.check_repair("metadata", "epochs", "ended", "horizons", reason=reason)

    def test_a_damaged_row_of_a_segment_with_a_damaged_head(self) -> None:
        self.damage("UPDATE segments SET salt = 3 WHERE sequence = 1")
        path = min(self.path.glob("*.log"))
        path.write_bytes(b"?" + path.read_bytes()[1:])
        code, out = self.run_on("repair")
        assert code == 0, out
        assert f"{path.name} cannot be used, and is now {path.name}.damaged" in out
