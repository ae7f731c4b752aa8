"""Remedies for errors of the file system."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import StartError
from pubsub.store.disk_remedies import (
    history_command,
    is_damage,
    may_lack_space,
    refuse_start,
    remedy_of,
)
from tests.unit.raising import raised, sqlite_error


class RemedyTests(SynchronousTestCase):
    """remedy_of"""

    def test_the_usual_causes(self) -> None:
        for number, word in (
            (errno.ENOSPC, "room"), (errno.EROFS, "read-only"), (errno.EDQUOT, "quota"),
            (errno.EACCES, "user"), (errno.EPERM, "lsattr"), (errno.ENOENT, "put the directory"),
            (errno.ESTALE, "put the directory"), (errno.EIO, "dmesg"), (errno.EFBIG, "LimitFSIZE"),
            (errno.EAGAIN, "TasksMax"),
        ):  # fmt: skip
            remedy = remedy_of(OSError(number, os.strerror(number)))
            assert remedy.startswith("; "), word
            assert word in remedy

    def test_sqlite(self) -> None:
        assert "permissions" in remedy_of(sqlite3.OperationalError("disk I/O error"))

    def test_other_errors_have_none(self) -> None:
        assert remedy_of(OSError(errno.EINVAL, "Invalid argument")) == ""
        assert remedy_of(OSError("without a number")) == ""
        assert remedy_of(ValueError()) == ""


class CommandTests(SynchronousTestCase):
    """history_command"""

    def test_a_shell_takes_it(self) -> None:
        command = history_command("repair", Path("/srv/pub sub/history"))
        assert command == "pubsub history repair --store 'log:/srv/pub sub/history'"
        assert history_command("check", Path("/h")) == "pubsub history check --store log:/h"


class StartErrorTests(SynchronousTestCase):
    """refuse_start, and the causes of errors"""

    def shown(self, error: OSError | sqlite3.Error) -> str:
        refused = raised(StartError, refuse_start, Path("/srv/h"), error)
        return str(refused).removeprefix("history: cannot use ")

    def test_the_file_and_the_remedy_are_named(self) -> None:
        foreign = PermissionError(errno.EACCES, "Permission denied", "metadata.db")
        assert self.shown(foreign) == (
            "/srv/h/metadata.db: Permission denied; let the broker's user write to the directory "
            "of the history and its files"
        )
        above = OSError(errno.EROFS, "Read-only file system", "/srv")
        assert self.shown(above).startswith("/srv/h: Read-only file system; find out why")

    def test_a_missing_directory_has_no_remedy_of_a_broker_that_runs(self) -> None:
        error = FileNotFoundError(errno.ENOENT, "No such file or directory", "/srv")
        assert self.shown(error) == "/srv/h: No such file or directory"

    def test_sqlite(self) -> None:
        locked = sqlite_error("database is locked", sqlite3.SQLITE_BUSY)
        assert self.shown(locked) == (
            "/srv/h: database is locked; end the program that uses metadata.db"
        )
        closed = sqlite_error("unable to open database file", sqlite3.SQLITE_CANTOPEN)
        assert "permissions" in self.shown(closed)

    def test_only_a_full_disk_is_helped_by_space(self) -> None:
        full, denied = OSError(errno.ENOSPC, ""), PermissionError(errno.EACCES, "")
        locked = sqlite_error("", sqlite3.SQLITE_BUSY)
        failed = sqlite_error("", sqlite3.SQLITE_IOERR_SHMSIZE)
        causes = (full, OSError(errno.EDQUOT, ""), failed, denied, locked)
        assert [may_lack_space(one) for one in causes] == [True, True, True, False, False]

    def test_damage(self) -> None:
        codes = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN_ISDIR, sqlite3.SQLITE_BUSY_RECOVERY)
        assert [is_damage(sqlite_error("", code)) for code in codes] == [True, False, False]
        read = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHMSIZE)
        assert [is_damage(sqlite_error("", code)) for code in read] == [True, False]
        assert is_damage(sqlite3.OperationalError("Could not decode to UTF-8"))
