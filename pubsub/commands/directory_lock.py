"""The lock of a directory, for files that are read, changed and replaced."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Keep a second writer of files in the directory ``path`` waiting.

    The directory is locked, as the files themselves are replaced.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
