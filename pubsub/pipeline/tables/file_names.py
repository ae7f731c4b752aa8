"""File names of a table. They identify the writer of a file, so that leftovers can be found.

A name has three parts: the writer, a random number, and a seal. The seal is a digest of the rest of
the path within the table, so it does not match in a file that was copied or moved. A file with any
other name is never treated as a leftover.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pubsub.pipeline.tables.free_directory import LOG_DIRECTORIES
from pubsub.pipeline.tables.partitions import Values
from pubsub.pipeline.tables.storage import Storage

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
        return _sealed(directory, f"pubsub-batch-{safe_name(self.query)}-{self.number}")


def new_merge_file(directory: str, source: str) -> str:
    """Return a path for a file in ``directory`` that replaces several; the first is ``source``."""
    return _sealed(directory, f"pubsub-merge-{_digest(source)}")


def parse_batch_id(path: str) -> BatchId | None:
    """Return the batch that wrote the file ``path``, or None if the name has no batch."""
    match = _BATCH.fullmatch(_unsealed(path))
    query = match and _unquote(match[1])
    return BatchId(query, int(match[2])) if match and query is not None else None


def is_own(path: str) -> bool:
    """Return whether ``path`` is from this module: of a batch, or a merge."""
    name = _unsealed(path)
    return bool(_BATCH.fullmatch(name) or _MERGE.fullmatch(name))


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


def readable_directory(_columns: Sequence[str], values: Values) -> str:
    """Return the directory of a partition of plain Parquet files, which contain all columns.

    It is valid on any file system and in any URL, for any values, and its length is
    limited. It is for people: readers take the values from the files.
    """
    return "/".join(_quote(value or "") for value in values)


def safe_name(text: str) -> str:
    """Return ``text`` as a name of a file: itself if it is simple and short."""
    return _quote(text)


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


def old_files(storage: Storage, depth: int, before: float) -> Iterator[str]:
    """Yield the files ``depth`` directories below that of the table, unchanged since ``before``.

    Does not follow links or enter other tables.
    """
    yield from _old_files(storage, "", depth, before)


def _old_files(storage: Storage, directory: str, depth: int, before: float) -> Iterator[str]:
    entries = storage.entries(directory)
    if directory and any(entry.name in LOG_DIRECTORIES for entry in entries):
        # The directory of another table.
        return
    for entry in entries:
        path = f"{directory}/{entry.name}".lstrip("/")
        if depth and entry.is_directory:
            yield from _old_files(storage, path, depth - 1, before)
        elif not depth and entry.is_file and entry.modified < before:
            yield path
