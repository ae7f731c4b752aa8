"""Names of files that are on disk: of new directories, of files that were renamed or replaced.

An fsync of a file brings its bytes to the disk, but not its name after a rename: that is in the
directory, which has an fsync of its own.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_names(path: Path) -> None:
    """Wait until the names of the files in a directory are on disk. Raises OSError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        # A user can make files in a directory that it cannot list, but not sync it.
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory and its parents, unless they exist; their names are on disk on return.

    ``mode`` is that of the directory itself. Raises OSError.
    """
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for one in missing:
        sync_names(one.parent)


def replace_text(path: Path, text: str) -> None:
    """Replace the content of ``path`` in one step; it is on disk on return. Raises OSError."""
    make_directory(path.parent)
    new = path.with_suffix(".new")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_names(path.parent)
