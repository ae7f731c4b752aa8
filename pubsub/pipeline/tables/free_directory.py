"""Checks that a directory is free for a new table, which is never created among other files."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from pubsub.errors import ConfigurationError

CHECKPOINTS = "_checkpoints"
LOG_DIRECTORIES = {"_delta_log": "Delta table", "_commits": "table of Parquet files"}
"""The directories in which tables keep their logs, and the kinds of these tables."""
_SHOWN = 3


def require_free_directory(path: str, kind: str, own: Collection[str]) -> None:
    """Raise ConfigurationError if ``path`` has files that do not belong to the new table.

    ``kind`` is the kind of the table in words. The names ``own`` are permitted, as the writer of
    the table may have been killed while it created it. Checkpoints of Spark are permitted too, as a
    query creates its checkpoint first.
    """
    directory = Path(path)
    if not os.path.lexists(directory):
        return
    if not directory.is_dir():
        raise ConfigurationError(
            f"{path}: cannot create a {kind}: not a directory; choose another path"
        )
    others = sorted(
        entry.name
        for entry in directory.iterdir()
        if entry.name not in {CHECKPOINTS, *own} and not _is_checkpoint(entry)
    )
    for log, other in LOG_DIRECTORIES.items():
        if log in others:
            raise ConfigurationError(
                f"{path}: cannot create a {kind}: the directory has a {other}; "
                "choose another directory, or the format of that table"
            )
    if others:
        raise ConfigurationError(
            f"{path}: cannot create a {kind}: the directory has other files: "
            f"{_list_names(others)}; choose a new or empty directory"
        )


def _is_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is a checkpoint of a query, or a directory of checkpoints only."""
    if path.is_symlink() or not path.is_dir():
        return False
    if (path / "metadata").is_file() and (path / "offsets").is_dir():
        return True
    entries = list(path.iterdir())
    return bool(entries) and all(map(_is_checkpoint, entries))


def _list_names(names: list[str]) -> str:
    text = ", ".join(map(repr, names[:_SHOWN]))
    more = len(names) - _SHOWN
    return f"{text} and {more} more" if more > 0 else text
