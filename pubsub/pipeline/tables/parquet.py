"""A directory of plain Parquet files with each batch once, on a local or shared disk.

Files are written to a staging directory. The commit of a batch is one small file that lists them
and is put in place by one rename. The listed files are then moved to their final directories, by
the next writer if this process dies. A reader sees each file complete, but may see only some files
of the newest batch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pubsub.durable_names import make_directory, replace_text, sync_names
from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.file_names import (
    old_files,
    parse_batch_id,
    readable_directory,
    safe_name,
)
from pubsub.pipeline.tables.files import WrittenFile
from pubsub.pipeline.tables.free_directory import require_free_directory
from pubsub.pipeline.tables.location import Location
from pubsub.pipeline.tables.storage import open_storage

_STAGING, _COMMITS = "_staging", "_commits"
_LEFTOVER_SECONDS = 86_400


class ParquetFiles:
    """The files below the directory ``where``, one or more for each partition of ``partition_by``.

    The files contain all columns.
    """

    keeps_partition_columns = True
    staging = _STAGING
    directory_of = staticmethod(readable_directory)

    def __init__(
        self, where: str | Location, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        self.path = Location.of(where).url
        self.schema = schema
        self.partition_by = list(partition_by)

    @staticmethod
    def check_directory(where: str | Location) -> None:
        """Raise ConfigurationError if the directory has contents other than a table of this kind.

        So does an object store, which cannot rename.
        """
        location = Location.of(where)
        if not location.is_local:
            raise ConfigurationError(
                f"{location}: plain Parquet files need a file system, as a commit renames them; "
                "use --format delta"
            )
        if not os.path.isdir(os.path.join(location.url, _COMMITS)):
            require_free_directory(location, "table of Parquet files", [_STAGING])

    def create_if_missing(self) -> None:
        """Create the table unless it exists. Must be called before files are written.

        Raises ConfigurationError if the directory has other contents.
        """
        self.check_directory(self.path)
        os.makedirs(os.path.join(self.path, _COMMITS), exist_ok=True)

    def commit(self, files: Sequence[WrittenFile], query: str, batch: int) -> bool:
        """Add ``files``, written by batch number ``batch`` of ``query``.

        Returns False if the table has that batch or a later one of the query. Then the files are
        removed.
        """
        log = self._log(query)
        done, moving = _read(log)
        self._move(moving)
        if done >= batch:
            self.discard(files, query)
            return False
        paths = [file.path for file in files]
        rows = sum(file.rows for file in files)
        replace_text(log, json.dumps({"batch": batch, "files": paths, "rows": rows}))
        self._move(paths)
        return True

    def last_batch(self, query: str) -> int:
        """Return the number of the last batch of ``query`` in the table, or -1."""
        return _read(self._log(query))[0]

    def batch_rows(self, query: str, batch: int) -> int | None:
        """Return the rows of the last batch, or None if an earlier version has written it."""
        known = json.loads(self._log(query).read_text())
        rows: int | None = known.get("rows") if known["batch"] == batch else None
        return rows

    def discard(self, files: Sequence[WrittenFile], query: str) -> None:
        """Remove ``files`` of ``query`` after their commit was refused or failed.

        Committed files stay, as the next batch moves them to their final directories.
        """
        _, moving = _read(self._log(query))
        for file in files:
            if file.path not in moving:
                Path(self._staged(file.path)).unlink(missing_ok=True)

    def compact(self) -> int:
        """Remove staged files that killed writers left at least a day ago, and empty directories
        of finished batches; files are not merged.

        Age alone is not enough, as clocks can be wrong. A file is removed if its batch is finished
        and does not list it, as it will never be committed.
        """
        staging = os.path.join(self.path, _STAGING)
        storage, before = open_storage(Location.of(staging)), time.time() - _LEFTOVER_SECONDS
        for path in old_files(storage, len(self.partition_by), before):
            batch = parse_batch_id(path)
            if batch is None:
                continue
            done, moving = _read(self._log(batch.query))
            if done >= batch.number and path not in moving:
                Path(staging, path).unlink(missing_ok=True)
        _remove_empty(staging, before)
        return 0

    def _log(self, query: str) -> Path:
        return Path(self.path, _COMMITS, f"{safe_name(query)}.json")

    def _staged(self, path: str) -> str:
        return os.path.join(self.path, _STAGING, path)

    def _move(self, paths: Sequence[str]) -> None:
        directories = set()
        for path in paths:
            staged, final = self._staged(path), Path(self.path, path)
            if os.path.exists(staged):
                make_directory(final.parent)
                os.replace(staged, final)
            # A process that was killed may have moved the file, and not have synced its name.
            if final.exists():
                directories.add(final.parent)
        # Before the next batch takes the place of the list: after a loss of power nothing else
        # shows that a file which is in the staging directory again was committed.
        for directory in directories:
            sync_names(directory)


def _remove_empty(directory: str, before: float) -> None:
    """Remove the empty directories below ``directory`` that are unchanged since ``before``.

    One in which a writer is about to create a file is made again by the writer.
    """
    for path, _, _ in os.walk(directory, topdown=False):
        with suppress(OSError):
            if path != directory and os.stat(path).st_mtime < before:
                os.rmdir(path)


def _read(log: Path) -> tuple[int, list[str]]:
    """Return the last committed batch and its files, or -1 without a batch."""
    if not log.exists():
        return -1, []
    known = json.loads(log.read_text())
    return known["batch"], known["files"]
