"""Remedies for errors of the file system."""

from __future__ import annotations

import errno
import os
import sqlite3

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.disk_remedies import remedy_of


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
