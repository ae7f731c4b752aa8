"""The file of the log and of the audit log, while the disk does not take everything."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.audit_log.rotated_file import RotatedFile
from tests.unit.fakes import scratch

FULL = OSError(errno.ENOSPC, "No space left on device")


class RotatedFileTests(SynchronousTestCase):
    """A file of three lines"""

    def setUp(self) -> None:
        self.path = scratch(self) / "log"
        self.file = RotatedFile(str(self.path), 6)
        self.addCleanup(self.file.close)

    def written(self) -> list[str]:
        """Return the contents of the files, the newest first."""
        names = [self.path, *sorted(self.path.parent.glob("log.*"))]
        return [name.read_text() for name in names if name.exists()]

    def write(self, *lines: str) -> None:
        for line in lines:
            self.file.write(f"{line}\n")

    def test_it_is_rotated(self) -> None:
        self.write("a", "b", "c", "d")
        assert self.written() == ["d\n", "a\nb\nc\n"]

    def test_a_new_file_is_begun_when_it_is_asked_for(self) -> None:
        self.write("a")
        self.file.begin_new()
        self.write("b")
        assert self.written() == ["b\n", "a\n"]

    def test_a_file_that_another_program_has_moved_gets_a_successor(self) -> None:
        self.write("a")
        moved = self.path.rename(self.path.with_name("moved"))
        with (
            patch("twisted.python.logfile.open", side_effect=FULL, create=True),
            pytest.raises(OSError, match="No space"),
        ):
            self.file.begin_new()
        self.file.begin_new()
        self.write("b")
        assert (moved.read_text(), self.written()) == ("a\n", ["b\n"])

    def test_it_goes_on_after_a_new_file_could_not_be_made(self) -> None:
        self.write("a", "b", "c")
        with patch("twisted.python.logfile.open", side_effect=FULL, create=True):
            for _ in range(2):
                with pytest.raises(OSError, match="No space"):
                    self.file.write("lost\n")
        self.write("d", "e")
        assert self.written() == ["d\ne\n", "a\nb\nc\n"]

    def test_the_old_file_goes_on_while_it_cannot_be_renamed(self) -> None:
        self.write("a", "b", "c")
        with patch.object(os, "rename", side_effect=OSError(errno.EPERM, "not permitted")):
            self.write("d")
        assert self.written() == ["a\nb\nc\nd\n"]
        self.write("e")
        assert self.written() == ["e\n", "a\nb\nc\nd\n"]

    def test_a_torn_line_is_an_error_and_ended_before_the_next(self) -> None:
        self.file._file = self.tearing()
        with pytest.raises(OSError, match="No space"):
            self.write("torn")
        self.write("x")
        assert self.written() == ["to\nx\n"]

    def tearing(self) -> Any:
        """Return a file with space for two bytes, and later for all."""
        self.file._file.close()
        return Tearing(self.path, "rb+")

    def test_a_device_is_not_renamed_and_keeps_its_mode(self) -> None:
        # A link, so that a test that fails does no harm to the device itself.
        link = self.path.with_name("device")
        link.symlink_to("/dev/zero")
        with patch("os.chmod") as changed:
            file = RotatedFile(str(link), 6, 10, 0o600)
            self.addCleanup(file.close)
            for _ in range(4):
                file.write("abc\n")
            file.begin_new()
        modes = [call.args[1] & 0o777 for call in changed.call_args_list]
        assert 0o600 not in modes
        assert [one.name for one in self.path.parent.glob("device*")] == ["device"]
        assert link.is_symlink()

    def test_it_has_no_hole_after_another_program_has_truncated_it(self) -> None:
        self.write("a")
        os.truncate(self.path, 0)
        self.write("b")
        assert self.written() == ["b\n"]


class Tearing(io.FileIO):
    """Takes two bytes, then fails once, then takes everything"""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._steps = iter(("some", "none"))

    def write(self, data: Any) -> int:
        match next(self._steps, "all"):
            case "some":
                return super().write(data[:2])
            case "none":
                raise FULL
        return super().write(data)
