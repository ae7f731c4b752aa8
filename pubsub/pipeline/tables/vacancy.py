"""Whether a directory is free for a new table: a table is never made among other files."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from pubsub.errors import ConfigurationError

CHECKPOINTS = "_checkpoints"
LOGS = {"_delta_log": "Delta table", "_commits": "table of Parquet files"}
"""Where tables keep what makes them tables, and what these are."""
_SHOWN = 3


def require_vacant(path: str, kind: str, own: Collection[str]) -> None:
    """Raises ConfigurationError if files are in ``path`` that a table must not be made among.

    ``kind`` is the table's kind in words. The names ``own`` may be there, as a table may have been
    in the making when its writer was killed. So may checkpoints of Spark: a query begins with one.
    """
    directory = Path(path)
    if not os.path.lexists(directory):
        return
    if not directory.is_dir():
        raise ConfigurationError(
            f"{path}: no {kind} can be made here, as it is no directory. Name another path"
        )
    others = sorted(
        entry.name
        for entry in directory.iterdir()
        if entry.name not in {CHECKPOINTS, *own} and not _has_only_checkpoints(entry)
    )
    for log, other in LOGS.items():
        if log in others:
            raise ConfigurationError(
                f"{path}: no {kind} can be made here, as the directory has a {other} already. "
                "Name another directory, or the format of that table"
            )
    if others:
        raise ConfigurationError(
            f"{path}: no {kind} can be made here, as the directory has other files: "
            f"{_some(others)}. Name a new or empty directory"
        )


def _has_only_checkpoints(path: Path) -> bool:
    """Whether ``path`` is a checkpoint of a streaming query, or a directory of such alone."""
    if path.is_symlink() or not path.is_dir():
        return False
    if (path / "metadata").is_file() and (path / "offsets").is_dir():
        return True
    entries = list(path.iterdir())
    return bool(entries) and all(map(_has_only_checkpoints, entries))


def _some(names: list[str]) -> str:
    text = ", ".join(map(repr, names[:_SHOWN]))
    more = len(names) - _SHOWN
    return f"{text} and {more} more" if more > 0 else text
