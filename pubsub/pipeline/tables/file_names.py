"""File names of a table. They identify the writer of a file, so that leftovers can be found.

A name has three parts: the writer, a random number, and a seal. The seal is a digest of the rest of
the path within the table, so it does not match in a file that was copied or moved. A file with any
other name is never treated as a leftover.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pubsub.pipeline.tables.free_directory import LOG_DIRECTORIES

# Readers ignore names that begin with an underscore or a dot.
_UNSAFE = re.compile(rb"^_|[^A-Za-z0-9_-]")
_QUOTED = re.compile(rb"\+([0-9a-f]{2})")
_LONGEST = 120
_BATCH = re.compile(r"pubsub-batch-(.+)-(0|[1-9][0-9]*)-[0-9a-f]{16}")
_MERGE = re.compile(r"pubsub-merge-([0-9a-f]{16})-[0-9a-f]{16}")
_SEALED = re.compile(r"(.+)-([0-9a-f]{16})\.parquet")


@dataclass(frozen=True, slots=True)
class BatchId:
    """The writer of a file: batch ``number`` of the streaming query ``query``."""

    query: str
    number: int

    def new_file(self, directory: str) -> str:
        """Return a path for a new file in ``directory`` of the table."""
        return _sealed(directory, f"pubsub-batch-{partition_directory([self.query])}-{self.number}")


def new_merge_file(directory: str, source: str) -> str:
    """Return a path for a file in ``directory`` that replaces several; the first is ``source``."""
    return _sealed(directory, f"pubsub-merge-{_digest(source)}")


def parse_batch_id(path: str) -> BatchId | None:
    """Return the batch that wrote the file ``path``, or None if the name has no batch."""
    match = _BATCH.fullmatch(_unsealed(path))
    query = match and _unquote(match[1])
    return BatchId(query, int(match[2])) if match and query is not None else None


def is_merge_of(path: str, sources: Iterable[str]) -> bool:
    """Return whether ``path`` is from ``new_merge_file`` for one of ``sources``."""
    match = _MERGE.fullmatch(_unsealed(path))
    return match is not None and match[1] in map(_digest, sources)


def _sealed(directory: str, name: str) -> str:
    path = f"{directory}/{name}-{secrets.token_hex(8)}".lstrip("/")
    return f"{path}-{_digest(path)}.parquet"


def _unsealed(path: str) -> str:
    """Return the name of ``path`` without its seal, or "" if the seal does not match the path."""
    match = _SEALED.fullmatch(path)
    if match is None or match[2] != _digest(match[1]):
        return ""
    return match[1].rpartition("/")[2]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def partition_directory(values: Iterable[str]) -> str:
    """Return the directory of a partition within the table.

    It is valid on any file system, in any URL and for every reader of Delta (some change a ``~``, a
    ``%`` or a ``=``), whatever the values are, and its length is limited. It is for people: readers
    take the values from the log of the table or from the files.
    """
    return "/".join(map(_quote, values))


def _quote(value: str) -> str:
    data = value.encode()
    quoted = _UNSAFE.sub(lambda match: b"+%02x" % match[0][0], data).decode() or "+"
    if len(quoted) <= _LONGEST:
        return quoted
    return f"{quoted[:_LONGEST]}++{hashlib.sha256(data).hexdigest()[:16]}"


def _unquote(quoted: str) -> str | None:
    """Return the value that ``_quote`` converted, or None if it was shortened."""
    data = _QUOTED.sub(lambda match: bytes.fromhex(match[1].decode()), quoted.encode())
    value = data.decode(errors="replace")
    return value if _quote(value) == quoted else None


def old_files(root: str, depth: int, before: float) -> Iterator[str]:
    """Yield paths of files ``depth`` directories below ``root``, unchanged since ``before``.

    Does not follow links or enter other tables.
    """
    yield from _old_files(root, "", depth, before)


def _old_files(root: str, directory: str, depth: int, before: float) -> Iterator[str]:
    entries = _entries(os.path.join(root, directory))
    if directory and any(entry.name in LOG_DIRECTORIES for entry in entries):
        # The directory of another table.
        return
    for entry in entries:
        path = os.path.join(directory, entry.name)
        if depth and entry.is_dir(follow_symlinks=False):
            yield from _old_files(root, path, depth - 1, before)
        elif not depth and _is_old(entry, before):
            yield path


def _entries(path: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory, or none if it was removed or cannot be read."""
    try:
        with os.scandir(path) as found:
            return list(found)
    except OSError:
        return []


def _is_old(entry: os.DirEntry[str], before: float) -> bool:
    """Return whether ``entry`` is an existing file that is old enough."""
    try:
        is_file = entry.is_file(follow_symlinks=False)
        return is_file and entry.stat(follow_symlinks=False).st_mtime < before
    except OSError:
        return False
