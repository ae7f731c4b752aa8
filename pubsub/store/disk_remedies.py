"""Errors of the file system and of SQLite: their causes, and remedies, which their words lack."""

from __future__ import annotations

import errno
import shlex
import sqlite3
from pathlib import Path
from typing import NoReturn

from pubsub.errors import StartError

_REMEDIES = {
    errno.ENOSPC: "make room on the file system of the history",
    errno.EDQUOT: "raise the quota of the broker's user, or make room",
    errno.EROFS: "find out why the file system is read-only (dmesg, ProtectSystem= of the service)",
    errno.EIO: "check the disk (dmesg)",
    errno.EACCES: "let the broker's user write to the directory of the history and its files",
    errno.EPERM: "remove the attributes of the files that forbid writing (lsattr)",
    errno.ENOENT: "put the directory back, or restart the broker, which then begins a new history",
    errno.ESTALE: "put the directory back, or restart the broker, which then uses the present one",
    errno.EFBIG: "raise the limit of the size of a file (LimitFSIZE=)",
    errno.EAGAIN: "raise the limits of threads and memory (TasksMax=, MemoryMax=)",
}
# Remedies for a broker that runs.
_GONE = (errno.ENOENT, errno.ESTALE)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ELSEWHERE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
# Input and output that fail at the bytes of the file; others are of the memory that its readers
# share, which a full disk has no space for, or of locks.
_UNREADABLE = (
    sqlite3.SQLITE_IOERR_CORRUPTFS,
    sqlite3.SQLITE_IOERR_DATA,
    sqlite3.SQLITE_IOERR_READ,
    sqlite3.SQLITE_IOERR_SHORT_READ,
)


def history_command(action: str, directory: Path) -> str:
    """Return the command that does ``action`` with the history in ``directory``, for a shell."""
    return f"pubsub history {action} --store {shlex.quote(f'log:{directory}')}"


def refuse_start(directory: Path, error: OSError | sqlite3.Error) -> NoReturn:
    """Raise StartError for ``error`` of the history in ``directory``."""
    if isinstance(error, sqlite3.Error):
        raise StartError(f"history: cannot use {directory}: {error}{remedy_of(error)}") from None
    # A name without a directory is that of a file in the history.
    name = error.filename if isinstance(error.filename, str) else ""
    path = directory if Path(name).is_absolute() else directory / name
    remedy = "" if error.errno in _GONE else remedy_of(error)
    raise StartError(f"history: cannot use {path}: {error.strerror}{remedy}") from None


def may_lack_space(error: OSError | sqlite3.Error) -> bool:
    """Return whether the reason may be that the disk is full; SQLite does not always tell."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return not is_locked(error)


def is_full(error: OSError | sqlite3.Error) -> bool:
    """Return whether the error says that the disk, or a quota, is full."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return _code(error) == sqlite3.SQLITE_FULL


def is_locked(error: Exception) -> bool:
    """Return whether the metadata could not be used because another program has locked them."""
    return _code(error) == sqlite3.SQLITE_BUSY


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether the reason may be the content of the file, and not the system."""
    if _code(error) == sqlite3.SQLITE_IOERR:
        return getattr(error, "sqlite_errorcode", 0) in _UNREADABLE
    return not is_locked(error) and _code(error) not in _ELSEWHERE


def _code(error: Exception) -> int:
    # Errors of the module itself, such as text that is not UTF-8, have no code.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def remedy_of(error: BaseException) -> str:
    """Return ``; `` and what the operator can do, or an empty string."""
    number = error.errno if isinstance(error, OSError) else None
    remedy = _REMEDIES.get(number or 0, "")
    if isinstance(error, sqlite3.Error):
        remedy = (
            "end the program that uses metadata.db"
            if is_locked(error)
            else "check the space, the mount and the permissions of the directory of the history"
        )
    return f"; {remedy}" if remedy else ""
