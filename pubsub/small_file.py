"""Reading the small files that users name, such as secrets, with a bound on their size."""

from __future__ import annotations

import errno
import os
import stat

MOST_BYTES = 16 * 1024**2
"""Bytes of the largest file: a password file of more than 100,000 users."""


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file.

    Raises OSError, also for another kind of file and for one of more than MOST_BYTES.
    """
    # To open a FIFO would wait for its writer; to open a directory fails.
    if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return read_bounded(path)


def read_bounded(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file, which may be a pipe. Raises OSError as ``read_regular``."""
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_BYTES:,} bytes", os.fspath(path))
    return data
