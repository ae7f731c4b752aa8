"""The audit log: lines, files, modes, and failures to write it."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.audit_log.audit import AuditLog
from pubsub.errors import ConfigurationError
from tests.unit.fakes import clock_at, scratch
from tests.unit.streams import logged


class AuditCase(SynchronousTestCase):
    """A log in a directory of its own."""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.directory = scratch(self)
        self.path = self.directory / "audit.log"

    def open(self, size: int = 0) -> AuditLog:
        audit = AuditLog(self.clock.seconds, str(self.path), size)
        self.addCleanup(audit.close)
        return audit

    def read(self, path: Path | None = None) -> list[dict[str, Any]]:
        text = (path or self.path).read_text(encoding="utf-8")
        assert text == "" or text.endswith("\n")
        return [json.loads(line) for line in text.split("\n")[:-1]]


class LineTests(AuditCase):
    """record"""

    def test_a_record_is_a_line_of_json(self) -> None:
        audit = self.open()
        audit.record("create", topic="orders", kept=2, removed=0)
        self.clock.advance(1.25)
        audit.record("reload", secrets_added=["b"], secrets_removed=[])
        assert self.path.read_text() == (
            '{"time": "2023-11-14T22:13:20.000+00:00", "event": "create", '
            '"topic": "orders", "kept": 2, "removed": 0}\n'
            '{"time": "2023-11-14T22:13:21.250+00:00", "event": "reload", '
            '"secrets_added": ["b"], "secrets_removed": []}\n'
        )

    def test_every_record_is_in_the_file_at_once(self) -> None:
        audit = self.open()
        for count in range(1, 4):
            audit.record("rotate", topic="t")
            assert len(self.read()) == count

    def test_names_of_clients_cannot_break_a_line(self) -> None:
        audit = self.open()
        names = ['a"b', "a\nb", "a\\", "\0", "zoë", "日本", "\u2028", '"}\n{"event":"forged"}']
        for name in names:
            audit.record("create", subject=name)
        assert [record["subject"] for record in self.read()] == names
        assert "zoë" in self.path.read_text(encoding="utf-8")

    def test_characters_that_a_terminal_obeys_are_escaped(self) -> None:
        audit = self.open()
        for escaped in ("\\u009b", "\\u007f", "\\u202e", "\\u2066", "\\u200b", "\\ud834\\udd73"):
            audit.record("create", subject=json.loads(f'"zoë{escaped}1"'))
            assert f'"zoë{escaped}1"' in self.path.read_text(encoding="utf-8")

    @given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
    @example("", "")
    @example('"}\n{"event":"forged"}', "\u2028")
    @example("\0\x7f\\", "\r\n")
    def test_any_text_is_restored(self, subject: str, client: str) -> None:
        self.setUp()
        self.open().record("create", subject=subject, client=client)
        (record,) = self.read()
        assert (record["subject"], record["client"]) == (subject, client)

    def test_text_that_is_not_utf8_is_recorded(self) -> None:
        """JSON can express it, so a signed token can contain it: ``{"sub": "\\ud800"}``."""
        self.open().record("create", subject="a\ud800b")
        (record,) = self.read()
        assert record["subject"].startswith("a")

    def test_without_a_path_it_goes_to_the_log(self) -> None:
        lines = logged(self)
        audit = AuditLog(self.clock.seconds)
        audit.record("rotate", topic="{topic}", kept=1)
        audit.close()
        assert lines == [
            'audit: {"time": "2023-11-14T22:13:20.000+00:00", "event": "rotate", '
            '"topic": "{topic}", "kept": 1}'
        ]


class FileTests(AuditCase):
    """The file and its mode"""

    def mode(self, path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    def test_it_appends_to_an_existing_file(self) -> None:
        for event in ("first", "second"):
            audit = AuditLog(self.clock.seconds, str(self.path))
            audit.record(event)
            audit.close()
        assert [record["event"] for record in self.read()] == ["first", "second"]

    def test_only_the_owner_can_read_it(self) -> None:
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        self.open().record("create")
        assert self.mode(self.path) == 0o600

    def test_a_file_that_others_could_read_becomes_private(self) -> None:
        self.path.write_text("")
        self.path.chmod(0o644)
        self.open()
        assert self.mode(self.path) == 0o600

    def test_a_full_file_is_rotated(self) -> None:
        audit = self.open(size=300)
        for number in range(14):
            audit.record("create", number=number)
        older = len(list(self.directory.iterdir())) - 1
        files = [self.path, *(self.directory / f"audit.log.{n}" for n in range(1, older + 1))]
        found = [[record["number"] for record in self.read(path)] for path in files]
        assert [number for numbers in reversed(found) for number in numbers] == list(range(14))
        assert older > 1
        assert all(300 <= path.stat().st_size < 400 for path in files[1:])
        assert [self.mode(path) for path in files] == [0o600] * len(files)

    def test_ten_old_files_are_kept(self) -> None:
        audit = self.open(size=1)
        for number in range(30):
            audit.record("create", number=number)
        names = sorted(path.name for path in self.directory.iterdir())
        assert names == sorted(["audit.log", *(f"audit.log.{n}" for n in range(1, 11))])
        assert self.read()[0]["number"] == 29
        assert self.read(self.directory / "audit.log.10")[0]["number"] == 19

    def test_without_a_size_nothing_is_rotated(self) -> None:
        audit = self.open(size=0)
        for _ in range(1000):
            audit.record("create", topic="t" * 100)
        assert [path.name for path in self.directory.iterdir()] == ["audit.log"]

    def test_a_file_that_was_moved_away_is_begun_again(self) -> None:
        audit = self.open()
        settings = {"audit-log": str(self.path), "audit-size": 0}
        audit.record("create", number=0)
        audit.reconfigure(settings)
        moved = self.path.rename(self.directory / "moved")
        audit.record("create", number=1)
        audit.reconfigure(settings)
        audit.record("create", number=2)
        self.path.unlink()
        self.path.touch()
        audit.reconfigure(settings)
        audit.record("create", number=3)
        numbers = [[record["number"] for record in self.read(path)] for path in (moved, self.path)]
        assert numbers == [[0, 1], [3]]
        assert self.mode(self.path) == 0o600


class FailureTests(AuditCase):
    """Paths that cannot be written"""

    def refuses(self, path: Path, pattern: str) -> None:
        with pytest.raises(ConfigurationError, match=pattern) as caught:
            AuditLog(self.clock.seconds, str(path))
        assert str(caught.value).startswith(f"audit-log: {path}: ")
        assert "\n" not in str(caught.value)

    def test_a_missing_directory(self) -> None:
        self.refuses(self.directory / "missing" / "audit.log", "No such file")

    def test_a_path_that_is_a_directory(self) -> None:
        self.refuses(self.directory, "directory")

    def test_a_path_below_a_file(self) -> None:
        self.path.write_text("")
        self.refuses(self.path / "audit.log", "Not a directory")

    def test_a_full_disk_is_logged_with_the_record(self) -> None:
        lines = logged(self)
        audit = self.open()
        full = OSError(errno.ENOSPC, "No space left on device")
        with patch.object(audit._file, "write", side_effect=full):
            audit.record("create", topic="orders")
        (line,) = lines
        assert line.startswith("audit-log: cannot write: No space left on device; record: {")
        assert '"topic": "orders"' in line
        audit.record("rotate")
        assert [record["event"] for record in self.read()] == ["rotate"]

    def test_it_goes_on_after_a_rotation_that_failed(self) -> None:
        lines = logged(self)
        audit = self.open(size=1)
        audit.record("first")
        full = OSError(errno.ENOSPC, "No space left on device")
        with patch("twisted.python.logfile.open", side_effect=full, create=True):
            for _ in range(2):
                audit.record("logged")
        assert [line.partition("; ")[0] for line in lines] == [
            "audit-log: cannot write: No space left on device"
        ] * 2
        audit.record("second")
        assert [record["event"] for record in self.read()] == ["second"]

    def test_a_reload_begins_the_file_that_a_rotation_could_not_make(self) -> None:
        logged(self)
        audit = self.open(size=1)
        audit.record("first")
        full = OSError(errno.ENOSPC, "No space left on device")
        with patch("twisted.python.logfile.open", side_effect=full, create=True):
            audit.record("logged")
        audit.reconfigure({"audit-log": str(self.path), "audit-size": 1})
        audit.record("second")
        assert [record["event"] for record in self.read()] == ["second"]
