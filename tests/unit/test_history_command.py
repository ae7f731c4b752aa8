"""``pubsub history``: check, repair, backup, restore and dump; see docs/command.md."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import chdir, closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pubsub.store.metadata.metadata import Metadata
from pubsub.store.reading.log_view import LogView
from pubsub.store.segments.segment import SEGMENT_HEAD_BYTES, index_name, read_head
from pubsub.store.segments.segment_index import SegmentIndex
from pubsub.store.segments.segment_scan import scan
from tests import sqlite_histories
from tests.histories import (
    START,
    damage,
    history,
    of_later_version,
    with_unknown_operation,
)
from tests.unit.command_case import CommandCase
from tests.unit.history_case import HistoryCase
from tests.unit.shown_log import numbers, shown

MAKE_ROOM = "make room there, and run the command again"


def change_index(path: Path, make: Callable[[Path], None]) -> None:
    """Put something else in the place of the index ``path``."""
    path.unlink(missing_ok=True)
    make(path)


class StoreTests(HistoryCase):
    """``--store`` has the form of the broker's setting."""

    def check(self, store: str) -> tuple[int, str]:
        code, out, err = self.run_it("history", "check", "--store", store)
        return code, out + err

    def test_a_directory_without_the_prefix(self) -> None:
        assert self.check(str(self.path)) == self.run_on("check")

    def test_the_default(self) -> None:
        with patch.dict(os.environ, STATE_DIRECTORY=str(self.directory)):
            assert self.check("log") == self.run_on("check")

    def test_the_file_of_version_0_1_stands_for_what_it_was_migrated_to(self) -> None:
        self.path.rename(self.directory / "old.db.log")
        code, out = self.check(f"sqlite:{self.directory / 'old.db'}")
        assert (code, out.count("no damage")) == (0, 1)

    def test_without_a_directory(self) -> None:
        for store, reason in (
            ("memory", "a history in memory has no directory"),
            ("log:", "expected memory, log or log:DIR, not 'log:'"),
            ("", "expected memory, log or log:DIR, not ''"),
        ):
            code, out = self.check(store)
            assert code == 2
            assert reason in out, out


class ErrorTests(HistoryCase):
    """Errors of the system name the files"""

    def test_what_is_written(self) -> None:
        backup = self.directory / "backup"
        full = OSError(errno.ENOSPC, "No space left on device")
        with patch("pubsub.store.maintenance.log_backup.os.fsync", side_effect=full):
            code, out = self.run_on("backup", str(backup))
        assert (code, out) == (
            1,
            f"pubsub: history: {backup}: No space left on device; {MAKE_ROOM}\n",
        )

    def test_a_file_of_the_history(self) -> None:
        error = OSError(errno.EROFS, "Read-only file system", "lock")
        with patch("pubsub.store.maintenance.log_repair.LogDirectory.lock", side_effect=error):
            code, out = self.run_on("repair")
        assert (code, out) == (1, f"pubsub: {self.path / 'lock'}: Read-only file system\n")

    def test_metadata_that_cannot_be_read(self) -> None:
        """SQLite would not say why, and a copy would name its own directory."""
        expected = 1, f"pubsub: {self.path / 'metadata.db'}: Permission denied\n"
        with patch("pubsub.store.segments.log_directory.os.access", return_value=False):
            for command in (["check"], ["dump"], ["repair"], ["backup", f"{self.path}-copy"]):
                assert self.run_on(*command) == expected

    def test_the_directory_of_the_history(self) -> None:
        """The error of a directory that is open names its descriptor."""
        error = OSError(errno.EIO, "Input/output error", 5)
        with patch("pubsub.store.segments.log_directory.LogDirectory.segments", side_effect=error):
            code, out = self.run_on("check")
        assert (code, out) == (1, f"pubsub: {self.path}: Input/output error\n")

    def test_a_full_disk_is_no_damage_of_the_metadata(self) -> None:
        check = "check the space, the mount and the permissions of the directory of the history"
        for cause, text, remedy in (
            (sqlite3.SQLITE_IOERR_SHMSIZE, "disk I/O error", check),
            (sqlite3.SQLITE_FULL, "database or disk is full", MAKE_ROOM),
            (sqlite3.SQLITE_CANTOPEN, "unable to open database file", check),
        ):
            full = sqlite3.OperationalError(text)
            full.sqlite_errorcode = cause
            for place in ("reading.log_view.Metadata", "maintenance.log_repair.Metadata.problems"):
                with patch(f"pubsub.store.{place}", side_effect=full):
                    code, out = self.run_on("repair")
                assert (code, out) == (1, f"pubsub: history: {self.path}: {text}; {remedy}\n")
        self.assert_fine()


class CheckTests(HistoryCase):
    def test_no_damage(self) -> None:
        (line,) = self.lines("check")
        assert line.endswith(
            "offsets 0 to 30, 30 messages in 15 records of 3 segments: no damage"
        ), line

    def test_beside_a_broker(self) -> None:
        broker = self.start_broker()
        for number in range(5):
            broker.put("a", [b"%d" % number] * 10)
            self.assert_fine()
        with self.segments()[-1].open("r+b") as file:
            file.seek(broker.writer._active().index.end)
            file.write(b"PSLR\1\0 a record that is being written")
        self.assert_fine()

    def test_a_damaged_record(self) -> None:
        damage(self.path, 10)
        code, out = self.run_on("check")
        assert code == 1
        first, last = out.splitlines()
        assert first == f"{self.segments()[1].name}: offsets 10 to 19 are damaged"
        assert last.endswith(": 1 problem")

    def test_every_byte_of_a_segment_counts(self) -> None:
        path = self.segments()[1]
        data = path.read_bytes()
        for at in range(0, len(data), 13):
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            code, out = self.run_on("check")
            assert code == 1, (at, out)

    def test_a_missing_segment(self) -> None:
        self.segments()[1].unlink()
        assert self.lines("check")[0] == "offsets 10 to 19 are missing: there is no segment of them"

    def test_a_missing_end(self) -> None:
        self.segments()[2].unlink()
        code, out = self.run_on("check")
        assert code == 1
        assert "offsets 20 to 29 were written and are missing" in out

    def test_indexes(self) -> None:
        missing, other, damaged = (path.with_suffix(".index") for path in self.segments())
        # The third is the newest segment, which has none yet.
        self.start_broker()
        missing.unlink()
        with self.segments()[1].open("rb") as file:
            head = read_head(file.fileno())
        index = SegmentIndex.decode(other.read_bytes(), head.salt)
        assert index is not None
        index._counts[0] += 1
        other.write_bytes(index.encode(head.salt))
        damaged.write_bytes(damaged.read_bytes()[:-1])
        code, out = self.run_on("check")
        assert code == 1
        assert out.splitlines()[:-1] == [
            f"{missing.name} is missing",
            f"{other.name} does not match its segment",
            f"{damaged.name} is damaged",
        ]

    def test_indexes_that_would_lead_reads_astray(self) -> None:
        """Times, with which a read by time finds its start, places, offsets and sizes."""
        path = self.segments()[0].with_suffix(".index")
        with self.segments()[0].open("rb") as file:
            head = read_head(file.fileno())
        right = path.read_bytes()
        for column, change in (
            ("_firsts", 1), ("_lasts", -1), ("_positions", 8), ("_bases", 1), ("_bytes", 1),
        ):  # fmt: skip
            index = SegmentIndex.decode(right, head.salt)
            assert index is not None
            # The entry with messages; the first one has operations.
            at = index._firsts.index(max(index._firsts)) if column != "_bytes" else 0
            getattr(index, column)[at] += change
            path.write_bytes(index.encode(head.salt))
            code, out = self.run_on("check")
            assert (code, out.splitlines()[0]) == (1, f"{path.name} does not match its segment"), (
                column
            )
        path.write_bytes(right)
        assert self.run_on("check")[0] == 0

    def test_metadata_that_cannot_be_read(self) -> None:
        (self.path / "metadata.db").write_bytes(b"something else" * 1000)
        code, out = self.run_on("check")
        assert code == 1
        assert "repair" in out
        (self.path / "metadata.db").unlink()
        code, out = self.run_on("check")
        assert code == 1
        assert "metadata.db is missing" in out

    def test_a_missing_directory(self) -> None:
        nowhere = self.directory / "nowhere"
        for command in (("check",), ("repair",), ("dump",), ("backup", str(nowhere) + "-copy")):
            code, out = self.run_on(*command, path=nowhere)
            assert (code, nowhere.exists()) == (1, False)
            assert f"{nowhere} does not exist; name the directory with --store log:DIR" in out
        line = self.one_line("history", "restore", str(nowhere))
        assert line.endswith(f"{nowhere} does not exist; name the directory of a backup\n")

    def test_another_kind_of_file(self) -> None:
        file = self.file("one", b"x")
        for command, problem in (
            (("restore", file), f"{file} is a file; name the directory of a backup\n"),
            (("migrate", "nowhere"), "nowhere does not exist; name the file of version 0.1\n"),
            (("migrate", "/"), "/ is not a file; name the file of version 0.1\n"),
        ):
            store = f"log:{self.directory / 'new'}"
            assert self.one_line("history", *command, "--store", store).endswith(problem)

    def test_the_default_directory(self) -> None:
        with patch.dict(os.environ, STATE_DIRECTORY=str(self.directory)):
            code, out, _ = self.run_it("history", "check")
        assert code == 0
        assert str(self.path) in out


class RepairTests(HistoryCase):
    def test_nothing_to_do(self) -> None:
        assert self.lines("repair") == [f"{self.path}: nothing had to be repaired"]

    def test_not_beside_a_broker(self) -> None:
        self.start_broker()
        code, out = self.run_on("repair")
        assert code == 1
        assert "is in use by another broker" in out
        assert out.endswith("; stop it first\n")

    def test_not_a_history_of_a_later_version(self) -> None:
        of_later_version(self.segments()[0])
        self.assert_untouched("a segment has version 2")

    def test_not_metadata_of_a_later_version(self) -> None:
        with closing(sqlite3.connect(self.path / "metadata.db")) as connection:
            connection.execute("PRAGMA user_version = 2")
        self.assert_untouched("metadata.db has version 2")

    def test_not_operations_of_a_later_version(self) -> None:
        """Metadata that are made without them would lack changes. They are shown as such."""
        with with_unknown_operation(), history(self.path) as log:
            log.store("tokens", "later", b"value")
        (self.path / "metadata.db").unlink()
        unreadable = "the record at offset 30 has operations that this version cannot read"
        before = {path.name: path.read_bytes() for path in self.segments()}
        code, out = self.run_on("repair")
        assert code == 1
        assert unreadable in out
        assert "unknown code 9" in out
        assert not (self.path / "metadata.db").exists()
        assert before == {path.name: path.read_bytes() for path in self.segments()}

    def test_operations_of_a_later_version_are_shown(self) -> None:
        with with_unknown_operation(), history(self.path) as log:
            log.store("tokens", "later", b"value")
        name = self.segments()[-1].name
        code, out = self.run_on("check")
        assert code == 1
        assert out.count(f"{name}: history: the record at offset 30 has operations that") == 2
        rows = [json.loads(line) for line in self.lines("dump")]
        assert sum("unknown code 9" in row.get("unreadable", "") for row in rows) == 2
        assert "operations" not in rows[-1]

    def assert_untouched(self, reason: str) -> None:
        """A repair fails for this reason, and changes no file."""
        before = {path.name: path.read_bytes() for path in self.path.iterdir()}
        code, out = self.run_on("repair")
        assert (code, out.count("\n")) == (1, 1), out
        assert f"{reason}, and this broker supports up to 1" in out
        after = {path.name: path.read_bytes() for path in self.path.iterdir()}
        assert {name: after.get(name) for name in before if name != "lock"} == {
            name: data for name, data in before.items() if name != "lock"
        }

    def test_missing_metadata(self) -> None:
        before, epochs = self.stored(), self.epochs()
        for path in self.path.glob("metadata.db*"):
            path.unlink()
        assert self.run_on("repair")[0] == 0
        self.assert_fine()
        assert self.stored() == before
        assert self.epochs() == epochs
        assert self.read() == (numbers(range(10, 30)), [])
        self.start_broker().put("a", [b"more"])
        assert self.read()[0][-1] == b"more"

    def epochs(self) -> list[tuple[str, int]]:
        view = LogView(self.path)
        view.close()
        return view.epochs

    def test_metadata_of_another_history(self) -> None:
        other = self.directory / "other"
        with history(other) as log:
            log.store("tokens", "foreign", b"value")
        shutil.copy(other / "metadata.db", self.path / "metadata.db")
        lines = self.lines("repair")
        assert "metadata.db.damaged: it belongs to another history" in lines[0]
        assert "foreign" not in self.stored()
        assert len(self.stored()) == 3
        self.assert_fine()

    def test_the_readable_part_of_damaged_metadata_is_kept(self) -> None:
        path = self.path / "metadata.db"
        connection = sqlite3.connect(path)
        connection.execute(
            "INSERT INTO metadata VALUES ('tokens', 'old', X'66726f6d206265666f7265')"
        )
        connection.execute("DROP TABLE epochs")
        connection.commit()
        connection.close()
        # A segment in which a value was stored has expired.
        assert self.run_on("repair")[0] == 0
        assert self.stored()["old"] == b"from before"
        assert len(self.stored()) == 4
        assert len(self.epochs()) == 3
        self.assert_fine()

    def test_files_that_cannot_be_read_get_another_name(self) -> None:
        first, second, _ = self.segments()
        data = bytearray(first.read_bytes())
        data[20] ^= 1
        # Neither the head nor the first record shows which segment it was, nor does the size.
        data[64:] = data[65:]
        first.write_bytes(data)
        (self.path / "notes.log").write_text("text")
        (self.path / f"{5:020}-{9:08}.log").symlink_to(second)
        lines = self.lines("repair")
        for name in (first.name, "notes.log", f"{5:020}-{9:08}.log"):
            assert os.path.lexists(self.path / f"{name}.damaged")
            assert any(line.startswith(f"{name} cannot be used, and is now") for line in lines)
        assert "offsets 0 to 9 are lost: no segment has them" in lines
        assert Path(f"{first}.damaged").read_bytes() == data
        assert self.read() == (numbers(range(10, 30)), [(0, 10)])
        assert self.lines("repair") == ["offsets 0 to 9 are lost: no segment has them"]
        self.start_broker()
        assert self.read()[0] == numbers(range(10, 30))

    def test_a_segment_with_a_wrong_name(self) -> None:
        path = self.segments()[1]
        path.rename(path.with_name("renamed.log"))
        assert self.lines("repair") == [
            f"renamed.log had the wrong name, and is now {path.name}",
        ]
        self.assert_fine()

    def test_segments_with_each_others_names(self) -> None:
        before = self.read()
        first, second, _ = self.segments()
        between = self.path / "between"
        first.rename(between)
        second.rename(first)
        between.rename(second)
        lines = self.lines("repair")
        assert f"{first.name} had the wrong name, and is now {second.name}" in lines
        assert f"{second.name} had the wrong name, and is now {first.name}" in lines
        self.assert_fine()
        assert self.read() == before

    def test_a_copy_under_the_name_of_another_segment(self) -> None:
        first, second, _ = self.segments()
        second.rename(self.path / "renamed.log")
        shutil.copy(first, second)
        lines = self.lines("repair")
        assert f"renamed.log had the wrong name, and is now {second.name}" in lines
        assert Path(f"{second}.damaged").read_bytes() == first.read_bytes()
        self.assert_fine()

    def test_damaged_heads_are_written_again(self) -> None:
        for path in self.segments()[:2]:
            whole = path.read_bytes()
            for at in range(0, 64, 3):
                path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
                assert self.run_on("check")[0] == 1
                (line,) = self.lines("repair")
                assert line.startswith(f"{path.name}: the head of the segment was damaged, and was")
                assert path.read_bytes() == whole
                self.assert_fine()

    def test_damaged_heads_beside_damaged_metadata(self) -> None:
        path = self.segments()[0]
        whole = path.read_bytes()
        path.write_bytes(b"?" + whole[1:])
        connection = sqlite3.connect(self.path / "metadata.db")
        connection.execute("DROP TABLE epochs")
        connection.commit()
        connection.close()
        assert self.run_on("repair")[0] == 0
        assert path.read_bytes() == whole
        self.assert_fine()

    def test_the_head_of_the_newest_segment_is_nowhere_else(self) -> None:
        path = self.segments()[-1]
        path.write_bytes(b"?" + path.read_bytes()[1:])
        lines = self.lines("repair")
        assert lines[0].startswith(f"{path.name} cannot be used, and is now {path.name}.damaged")
        assert self.read()[0] == numbers(range(10, 20))

    def test_empty_metadata(self) -> None:
        (self.path / "metadata.db").write_bytes(b"")
        line = self.lines("repair")[0]
        assert line == ("metadata.db cannot be used, and is now metadata.db.damaged: it is empty")
        self.assert_fine()

    def test_damaged_records_stay_and_indexes_are_made_again(self) -> None:
        damage(self.path, 20)
        with history(self.path) as log:
            log.put("a", [b"more"])
        missing = self.segments()[1].with_suffix(".index")
        missing.unlink()
        lines = self.lines("repair")
        assert f"{missing.name} is missing; it was made again" in lines
        assert f"{self.segments()[2].name}: offsets 20 to 29 are damaged and are lost" in lines
        assert missing.exists()
        assert self.read() == ([*numbers(range(10, 20)), b"more"], [(20, 30)])

    def test_a_missing_end_is_named(self) -> None:
        self.segments()[2].unlink()
        lines = self.lines("repair")
        assert lines == ["offsets 20 to 29 are lost: they were written and are missing"]

    def test_nothing_that_could_be_repaired(self) -> None:
        empty = self.directory / "empty"
        empty.mkdir()
        code, out = self.run_on("repair", path=empty)
        assert code == 1
        assert "nothing to repair" in out
        assert not list(empty.iterdir())


class BackupTests(HistoryCase):
    def setUp(self) -> None:
        super().setUp()
        self.backup = self.directory / "backups" / "today"

    def test_beside_a_broker_that_writes(self) -> None:
        broker = self.start_broker()
        broker.put("a", numbers(range(30, 35)))
        broker.store("tokens", "late", b"value")
        with self.segments()[-1].open("r+b") as file:
            file.seek(broker.writer._active().index.end)
            file.write(b"PSLR\1\0 a record that is being written")
        (line,) = self.lines("backup", str(self.backup))
        assert line == f"{self.backup}: backup of offsets 0 to 35"
        broker.put("a", numbers(range(35, 40)))
        self.assert_fine(self.backup)
        # Readers leave none of SQLite's files there.
        assert not list(self.backup.glob("metadata.db-*"))
        assert self.read(self.backup) == (numbers(range(10, 35)), [])
        assert self.stored(self.backup)["late"] == b"value"
        assert (self.backup / self.segments()[0].name).stat().st_nlink == 2
        assert (self.backup / self.segments()[-1].name).stat().st_nlink == 1
        assert self.backup.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in self.backup.iterdir()} == {0o600}

    def test_a_segment_that_cannot_be_read_is_named(self) -> None:
        path = self.segments()[1]
        path.write_bytes(b"?" + path.read_bytes())
        code, out = self.run_on("backup", str(self.backup))
        missing = "offsets 10 to 19 are missing: there is no segment of them"
        assert (code, out.splitlines()) == (1, [
            f"{self.backup}: backup of offsets 0 to 30, with 2 problems",
            f"{path.name} is not in the copy: the file is not a segment of a history",
            missing,
        ])  # fmt: skip
        found = numbers(range(20, 30)), [(10, 20)]
        assert self.read(self.backup) == found
        restored = self.directory / "restored"
        code, out = self.run_on("restore", str(self.backup), path=restored)
        assert (code, out.splitlines()[1:]) == (1, [missing])
        assert self.read(restored) == found

    def test_a_damaged_record_is_reported_and_copied(self) -> None:
        path = self.segments()[1]
        data = path.read_bytes()
        path.write_bytes(data[:200] + bytes((data[200] ^ 1,)) + data[201:])
        code, out = self.run_on("backup", "--no-check", str(self.directory / "unchecked"))
        assert (code, out.count("\n")) == (0, 1)
        code, out = self.run_on("backup", str(self.backup))
        first, damage = out.splitlines()
        assert (code, first) == (1, f"{self.backup}: backup of offsets 0 to 30, with 1 problem")
        assert damage == f"{path.name}: a record of metadata at offset 10 is damaged"
        assert self.read(self.backup) == self.read()

    def test_the_present_directory(self) -> None:
        self.backup.mkdir(parents=True)
        with chdir(self.backup):
            code, out = self.run_on("backup", ".")
            assert (code, out) == (0, ".: backup of offsets 0 to 30\n")
        assert self.read(self.backup) == self.read()
        with chdir(self.backup):
            code, out = self.run_on("backup", ".")
        assert (code, out.count("\n")) == (1, 1)
        assert f"{self.backup} exists and is not an empty directory" in out

    def test_indexes_that_are_not_regular_files(self) -> None:
        with closing(LogView(self.path)) as view:
            names = [index_name(one.name) for one in view.catalog.segments]
        change_index(self.path / names[0], lambda path: path.symlink_to("nowhere"))
        change_index(self.path / names[1], Path.mkdir)
        code, out = self.run_on("backup", str(self.backup))
        assert (code, out.count("\n")) == (0, 1), out
        assert self.read(self.backup) == self.read()
        code, out = self.run_on("check")
        assert code == 1
        assert out.splitlines()[:2] == [f"{name} is not a regular file" for name in names[:2]]
        lines = self.lines("repair")
        for name in names[:2]:
            assert f"{name} is missing; it was made again" in lines
            assert os.path.lexists(self.path / f"{name}.damaged")
        self.assert_fine()

    def test_operations_that_the_metadata_do_not_have_yet(self) -> None:
        broker = self.start_broker()
        broker.put("a", [b"x"])
        broker.end("a", sync=False)
        self.run_on("backup", str(self.backup))
        restored = self.directory / "restored"
        self.run_on("restore", str(self.backup), path=restored)
        assert self.read(restored) == ([], [])

    def test_restored_under_another_boot_no_offset_is_lost(self) -> None:
        self.run_on("backup", str(self.backup))
        self.stop_broker()
        with patch("pubsub.store.opening.recovery.boot_id", lambda: b"another boot....."[:16]):
            code, out = self.run_on("restore", str(self.backup), path=self.directory / "restored")
            assert (code, out.count("\n")) == (0, 1), out
            with history(self.directory / "restored") as log:
                assert log.next == 30
                log.put("a", [b"more"])
        self.assert_fine(self.directory / "restored")
        # The backup shares no file that is written to.
        self.assert_fine(self.backup)
        assert self.read(self.backup) == (numbers(range(10, 30)), [])

    def test_a_copy_beside_a_broker_was_closed(self) -> None:
        """So its next message has the next offset, also on another machine."""
        broker = self.start_broker()
        broker.put("a", [b"x"])
        self.run_on("backup", str(self.backup))
        with closing(Metadata(self.backup / "metadata.db")) as metadata:
            rows = {(row.base, row.sequence): row for row in metadata.segments()}
        complete = broker.catalog.segments[:-1]
        assert list(rows) == [segment.place for segment in complete]
        for segment in complete:
            row = rows[segment.place]
            assert (row.stop, row.salt) == (segment.stop, segment.head.salt)
        with (
            patch("pubsub.store.opening.recovery.boot_id", lambda: b"another boot....."[:16]),
            history(self.backup) as log,
        ):
            assert log.next == 31

    def test_a_segment_of_which_the_metadata_have_no_row_yet(self) -> None:
        with closing(Metadata(self.path / "metadata.db")) as metadata:
            rows = metadata.segments()
            metadata.replace_segments([(rows[1].base, rows[1].sequence)], [], 0)
        self.run_on("backup", str(self.backup))
        with closing(Metadata(self.backup / "metadata.db")) as metadata:
            assert metadata.segments()[:2] == rows[:2]
        self.assert_fine(self.backup)

    def test_an_interrupted_copy_is_left_alone(self) -> None:
        left = self.backup.with_name("today.new")
        left.mkdir(parents=True)
        (left / "metadata.db").write_bytes(b"x")
        code, out = self.run_on("backup", str(self.backup))
        assert code == 1
        assert f"{left} is left from an interrupted copy; remove it first" in out
        assert [path.name for path in left.iterdir()] == ["metadata.db"]

    def test_segments_that_change_all_the_time(self) -> None:
        with patch("os.link", side_effect=FileNotFoundError):
            code, out = self.run_on("backup", str(self.backup))
        assert code == 1
        assert "so no copy was consistent; try again" in out
        assert not list(self.backup.parent.iterdir())

    def test_on_another_file_system(self) -> None:
        with patch("os.link", side_effect=OSError(18, "Invalid cross-device link")):
            self.run_on("backup", str(self.backup))
        self.assert_fine(self.backup)
        assert (self.backup / self.segments()[0].name).stat().st_nlink == 1

    def test_a_segment_is_removed_meanwhile(self) -> None:
        """The copy begins again, and ends up without it."""
        broker = self.start_broker()
        oldest, real = self.segments()[0], os.link

        def link(name: str, *args: Any, **kwargs: Any) -> None:
            if oldest.exists():
                broker.metadata.replace_segments([(0, 1)], [], 10)
                oldest.unlink()
            real(name, *args, **kwargs)

        with patch("os.link", link):
            (line,) = self.lines("backup", str(self.backup))
        assert line.endswith("backup of offsets 10 to 30")
        self.assert_fine(self.backup)

    def test_a_segment_is_rewritten_meanwhile(self) -> None:
        """A rewritten segment has no operations; the copy of the metadata must have them."""
        self.start_broker().put("a", [b"x"])
        real = Metadata.copy_to
        done: list[Path] = []

        def copy_to(metadata: Metadata, path: Path) -> None:
            real(metadata, path)
            if not done:
                done.append(path)
                assert self.broker is not None
                self.broker.store("tokens", "late", b"value")
                self.stop_broker()
                self.rewrite(self.start_broker())

        with patch.object(Metadata, "copy_to", copy_to):
            assert self.run_on("backup", str(self.backup))[0] == 0
        assert self.stored(self.backup)["late"] == b"value"
        self.assert_fine(self.backup)
        self.assert_fine()
        assert self.read() == self.read(self.backup) == ([*numbers(range(10, 30)), b"x"], [])

    def test_existing_directories(self) -> None:
        self.backup.mkdir(parents=True)
        assert self.run_on("backup", str(self.backup))[0] == 0
        for action, path in (("backup", self.path), ("restore", self.path)):
            code, out = self.run_on(action, str(self.backup), path=path)
            assert code == 1
            assert "is not an empty directory" in out
        self.assert_fine()

    def test_a_copy_that_fails_leaves_nothing(self) -> None:
        with (
            patch(
                "pubsub.store.maintenance.log_backup._read",
                side_effect=OSError(28, "No space left on device"),
            ),
            patch("os.link", side_effect=OSError(18, "Invalid cross-device link")),
        ):
            code, out = self.run_on("backup", str(self.backup))
        assert code == 1
        assert "No space left" in out
        assert not list(self.backup.parent.iterdir())


class DumpTests(HistoryCase):
    def dumped(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines("dump", *arguments)]

    def test_heads(self) -> None:
        found = self.dumped()
        assert len(found) == 15
        assert found[1]["topics"] == {"ended": {"messages": 10, "bytes": 70}}
        assert (found[1]["offset"], found[1]["count"], found[1]["first"]) == (0, 10, START)
        assert found[0]["operations"][0]["begin"].startswith("1-")
        assert found[2]["operations"] == [{"put": "tokens"}]
        assert found[3]["operations"] == [{"end": "ended", "offset": 10}]
        assert found[4]["flags"] == ["closed"]
        assert "messages" not in found[1]

    def test_payloads(self) -> None:
        found = self.dumped("--payloads")
        assert found[2]["operations"] == [
            {"put": "tokens", "key": "key 0", "value": "dmFsdWUgMA=="}
        ]
        assert found[1]["messages"][3] == {
            "offset": 3, "timestamp": START, "topic": "ended", "protocol": "cafe",
            "sender": "dGVzdGVy", "payload": "Mw==",
        }  # fmt: skip

    def test_damage(self) -> None:
        damage(self.path, 10)
        assert {"segment": self.segments()[1].name, "damaged": [10, 20]} in self.dumped()

    def test_positions_are_those_of_the_file(self) -> None:
        (first, *_) = self.segments()
        with first.open("rb") as file:
            salt = read_head(file.fileno()).salt
            positions = [one.position for one in scan(file.fileno(), SEGMENT_HEAD_BYTES, salt)]
        assert [
            one["position"] for one in self.dumped() if one["segment"] == first.name
        ] == positions


class MigrateTests(CommandCase):
    """``migrate``"""

    def test_a_full_disk(self) -> None:
        """What is full is the disk of the new history: the old file is only read."""
        old, new = self.directory / "history.db", self.directory / "new"
        with sqlite_histories.history(old) as written:
            written.put("a", [b"x"])
        of_disk = OSError(errno.ENOSPC, "No space left on device")
        of_metadata = sqlite3.OperationalError("database or disk is full")
        of_metadata.sqlite_errorcode = sqlite3.SQLITE_FULL
        for full in (of_disk, of_metadata):
            with patch("pubsub.store.migration.sqlite_migration.Metadata.create", side_effect=full):
                line = self.one_line("history", "migrate", str(old), "--store", f"log:{new}")
            assert line == f"pubsub: history: {new}: No space left on device; {MAKE_ROOM}\n"
        code, _, _ = self.run_it("history", "migrate", str(old), "--store", f"log:{new}")
        assert code == 0

    def test_a_file_becomes_a_directory(self) -> None:
        old, new = self.directory / "history.db", self.directory / "new" / "history"
        with sqlite_histories.history(old) as file:
            file.put("a", numbers(range(10)))
        code, out, _ = self.run_it("history", "migrate", str(old), "--store", f"log:{new}")
        assert (code, out) == (0, f"{new}: the history of {old}, which is kept\n")
        view = LogView(new)
        assert shown(view.refresh()) == (numbers(range(10)), [])
        view.close()
        assert old.exists()

    def test_errors_name_the_files_of_an_incomplete_history(self) -> None:
        """Those of an attempt by another user, for example."""
        old, new = self.directory / "history.db", self.directory / "history"
        with sqlite_histories.history(old):
            pass
        building = self.directory / "history.migrating"
        (building / "lock").mkdir(parents=True)
        line = self.one_line("history", "migrate", str(old), "--store", f"log:{new}")
        assert line == f"pubsub: {building / 'lock'}: Is a directory\n"
        shutil.rmtree(building)
        lock = Path(f"{old}-lock")
        lock.unlink()
        lock.mkdir()
        with chdir(self.directory):
            line = self.one_line("history", "migrate", old.name, "--store", f"log:{new}")
        assert line == f"pubsub: {lock}: Is a directory\n"

    def test_a_directory_that_exists_is_left_alone(self) -> None:
        old, new = self.directory / "history.db", self.directory
        with sqlite_histories.history(old):
            pass
        code, _, err = self.run_it("history", "migrate", str(old), "--store", f"log:{new}")
        assert code == 1
        assert "exists; give another directory" in err
