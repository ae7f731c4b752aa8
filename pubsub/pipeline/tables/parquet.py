"""A directory of plain Parquet files that holds every batch once, on a local or shared disk.

Files are written to a directory aside. A batch's commit is one small file that names them, put in
place by one rename; what it names is then moved to where it belongs, by whoever comes next if
this process dies. A reader sees each file whole, but may see a part of the newest batch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from pubsub.pipeline.tables.names import batch_of, directory, old_files
from pubsub.pipeline.tables.parts import File
from pubsub.pipeline.tables.vacancy import require_vacant

_STAGING, _COMMITS = "_staging", "_commits"
_FORGOTTEN_SECONDS = 86_400


class ParquetFiles:
    """The files below the directory ``path``, one or more for each partition of ``by``.

    Their paths look like Delta's. All columns are in the files.
    """

    keeps_partition_columns = True
    staging = _STAGING

    def __init__(self, path: str, schema: pa.Schema, by: Sequence[str]) -> None:
        self.path = os.path.abspath(path)
        self.schema = schema
        self.by = list(by)

    @staticmethod
    def admit(path: str) -> None:
        """Raises ConfigurationError if ``path`` has a content other than a table of this kind."""
        if not os.path.isdir(os.path.join(path, _COMMITS)):
            require_vacant(path, "table of Parquet files", [_STAGING])

    def prepare(self) -> None:
        """Make the table unless it is there. To be called before files of it are written.

        Raises ConfigurationError if the directory has another content.
        """
        self.admit(self.path)
        os.makedirs(os.path.join(self.path, _COMMITS), exist_ok=True)

    def commit(self, files: Sequence[File], query: str, batch: int) -> bool:
        """Add ``files``, which batch number ``batch`` of ``query`` wrote.

        False if that batch, or a later one of the same query, is there already: then the files
        are removed.
        """
        log = self._log(query)
        done, moving = _read(log)
        self._move(moving)
        if done >= batch:
            self.discard(files, query)
            return False
        paths = [file.path for file in files]
        _replace(log, json.dumps({"batch": batch, "files": paths}))
        self._move(paths)
        return True

    def discard(self, files: Sequence[File], query: str) -> None:
        """Remove ``files`` of ``query``, whose commit was refused or failed.

        Those that are committed stay, as the next batch moves them to where they belong.
        """
        _, moving = _read(self._log(query))
        for file in files:
            if file.path not in moving:
                Path(self._staged(file.path)).unlink(missing_ok=True)

    def compact(self) -> int:
        """Remove what killed writers left aside a day ago or more; files are not merged.

        Age alone proves nothing, as clocks may be wrong. What is removed is of a batch that is done
        and does not have the file: it never will.
        """
        staging = os.path.join(self.path, _STAGING)
        for path in old_files(staging, len(self.by), time.time() - _FORGOTTEN_SECONDS):
            batch = batch_of(path)
            if batch is None:
                continue
            done, moving = _read(self._log(batch.query))
            if done >= batch.number and path not in moving:
                Path(staging, path).unlink(missing_ok=True)
        return 0

    def _log(self, query: str) -> Path:
        return Path(self.path, _COMMITS, f"{directory([query])}.json")

    def _staged(self, path: str) -> str:
        return os.path.join(self.path, _STAGING, path)

    def _move(self, paths: Sequence[str]) -> None:
        for path in paths:
            staged, final = self._staged(path), os.path.join(self.path, path)
            if os.path.exists(staged):
                os.makedirs(os.path.dirname(final), exist_ok=True)
                os.replace(staged, final)


def _read(log: Path) -> tuple[int, list[str]]:
    """The last batch that is committed, and its files; -1 if there is none."""
    if not log.exists():
        return -1, []
    known = json.loads(log.read_text())
    return known["batch"], known["files"]


def _replace(path: Path, text: str) -> None:
    """Make ``text`` the content of ``path``, at once and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with open(new, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
