"""Checks that a directory is free for a new table, which is never created among other files."""

from __future__ import annotations

from collections.abc import Collection

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.location import Location
from pubsub.pipeline.tables.storage import DirectoryEntry, Storage, open_storage

CHECKPOINTS = "_checkpoints"
LOG_DIRECTORIES = {"_delta_log": "Delta table", "_commits": "table of Parquet files"}
"""The directories in which tables keep their logs, and the kinds of these tables."""
_SHOWN = 3


def require_free_directory(path: Location, kind: str, own: Collection[str]) -> None:
    """Raise ConfigurationError if ``path`` has files that do not belong to the new table.

    ``kind`` is the kind of the table in words. The names ``own`` are permitted, as the writer of
    the table may have been killed while it created it. Checkpoints of Spark are permitted too, as a
    query creates its checkpoint first.
    """
    storage = open_storage(path)
    if not storage.exists(""):
        return
    if not storage.is_directory(""):
        raise ConfigurationError(
            f"{path}: cannot create a {kind}: not a directory; choose another path"
        )
    others = sorted(
        entry.name
        for entry in storage.entries("")
        if entry.name not in {CHECKPOINTS, *own} and not _is_checkpoint(storage, entry.name, entry)
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


def _is_checkpoint(storage: Storage, path: str, entry: DirectoryEntry) -> bool:
    """Return whether ``path`` is a checkpoint of a query, or a directory of checkpoints only."""
    if not entry.is_directory:
        return False
    entries = {each.name: each for each in storage.entries(path)}
    metadata, offsets = entries.get("metadata"), entries.get("offsets")
    if metadata and metadata.is_file and offsets and offsets.is_directory:
        return True
    return bool(entries) and all(
        _is_checkpoint(storage, f"{path}/{name}", each) for name, each in entries.items()
    )


def _list_names(names: list[str]) -> str:
    text = ", ".join(map(repr, names[:_SHOWN]))
    more = len(names) - _SHOWN
    return f"{text} and {more} more" if more > 0 else text
