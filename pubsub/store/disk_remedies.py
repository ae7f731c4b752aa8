"""Remedies for errors of the file system, which the words of the system do not give."""

from __future__ import annotations

import errno
import sqlite3

_REMEDIES = {
    errno.ENOSPC: "make room on the file system of the history",
    errno.EDQUOT: "raise the quota of the broker's user, or make room",
    errno.EROFS: "find out why the file system is read-only (dmesg), and mount it for writing",
    errno.EIO: "check the disk (dmesg)",
    errno.EACCES: "let the broker's user write to the directory of the history and its files",
    errno.EPERM: "remove the attributes of the files that forbid writing (lsattr)",
    errno.ENOENT: "put the directory back, or restart the broker, which then begins a new history",
    errno.ESTALE: "put the directory back, or restart the broker, which then uses the present one",
    errno.EFBIG: "raise the limit of the size of a file (LimitFSIZE=)",
    errno.EAGAIN: "raise the limits of threads and memory (TasksMax=, MemoryMax=)",
}


def remedy_of(error: BaseException) -> str:
    """Return ``; `` and what the operator can do, or an empty string."""
    number = error.errno if isinstance(error, OSError) else None
    remedy = _REMEDIES.get(number or 0, "")
    if isinstance(error, sqlite3.Error):
        remedy = "check the space, the mount and the permissions of the directory of the history"
    return f"; {remedy}" if remedy else ""
