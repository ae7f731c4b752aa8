"""Names of a table's files, which say what wrote a file, so that leftovers are known by name.

A name has three parts: what wrote the file, a random number, and a seal. The seal is a digest of
the rest of the path within the table, so that a file that was copied or moved to another place no
longer matches its own. A file with any other name is never taken for a leftover.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pubsub.pipeline.tables.vacancy import LOGS

# Readers pass over what begins with an underscore or a dot.
_UNSAFE = re.compile(rb"^_|[^A-Za-z0-9_-]")
_QUOTED = re.compile(rb"\+([0-9a-f]{2})")
_LONGEST = 120
_BATCH = re.compile(r"pubsub-batch-(.+)-(0|[1-9][0-9]*)-[0-9a-f]{16}")
_MERGE = re.compile(r"pubsub-merge-([0-9a-f]{16})-[0-9a-f]{16}")
_SEALED = re.compile(r"(.+)-([0-9a-f]{16})\.parquet")


@dataclass(frozen=True, slots=True)
class Batch:
    """What writes a file: batch ``number`` of the streaming query ``query``."""

    query: str
    number: int

    def file(self, place: str) -> str:
        """A path for a new file in the directory ``place`` of the table."""
        return _sealed(place, f"pubsub-batch-{directory([self.query])}-{self.number}")


def merge_file(place: str, source: str) -> str:
    """A path for a new file in ``place`` that replaces several, the first of them ``source``."""
    return _sealed(place, f"pubsub-merge-{_digest(source)}")


def batch_of(path: str) -> Batch | None:
    """The batch that wrote the file ``path`` of a table; None if its name does not say that."""
    match = _BATCH.fullmatch(_unsealed(path))
    query = match and _unquote(match[1])
    return Batch(query, int(match[2])) if match and query is not None else None


def replaces(path: str, sources: Iterable[str]) -> bool:
    """Whether ``path`` is from ``merge_file``, and for one of ``sources``."""
    match = _MERGE.fullmatch(_unsealed(path))
    return match is not None and match[1] in map(_digest, sources)


def _sealed(place: str, name: str) -> str:
    path = f"{place}/{name}-{secrets.token_hex(8)}".lstrip("/")
    return f"{path}-{_digest(path)}.parquet"


def _unsealed(path: str) -> str:
    """The name of the file ``path`` without its seal; empty if the seal is not this path's."""
    match = _SEALED.fullmatch(path)
    if match is None or match[2] != _digest(match[1]):
        return ""
    return match[1].rpartition("/")[2]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def directory(values: Iterable[str]) -> str:
    """Where the files of a partition are, within the table.

    Safe on any file system, in any URL and for every reader of Delta (some change a ``~``, a ``%``
    or a ``=``), whatever the values are, and short enough. It is for people: the values are read
    from the table's log or the files themselves, never from here.
    """
    return "/".join(map(_quote, values))


def _quote(value: str) -> str:
    data = value.encode()
    quoted = _UNSAFE.sub(lambda match: b"+%02x" % match[0][0], data).decode() or "+"
    if len(quoted) <= _LONGEST:
        return quoted
    return f"{quoted[:_LONGEST]}++{hashlib.sha256(data).hexdigest()[:16]}"


def _unquote(quoted: str) -> str | None:
    """What ``_quote`` made ``quoted`` of; None if it was cut."""
    data = _QUOTED.sub(lambda match: bytes.fromhex(match[1].decode()), quoted.encode())
    value = data.decode(errors="replace")
    return value if _quote(value) == quoted else None


def old_files(root: str, depth: int, before: float) -> Iterator[str]:
    """Paths within ``root`` of the files ``depth`` directories below, not changed since ``before``.

    Links are not followed, and other tables are not entered.
    """
    yield from _old_files(root, "", depth, before)


def _old_files(root: str, place: str, depth: int, before: float) -> Iterator[str]:
    entries = _entries(os.path.join(root, place))
    if place and any(entry.name in LOGS for entry in entries):
        # Another table.
        return
    for entry in entries:
        path = os.path.join(place, entry.name)
        if depth and entry.is_dir(follow_symlinks=False):
            yield from _old_files(root, path, depth - 1, before)
        elif not depth and _is_old(entry, before):
            yield path


def _entries(path: str) -> list[os.DirEntry[str]]:
    """What is in a directory; nothing if it was removed meanwhile or may not be read."""
    try:
        with os.scandir(path) as found:
            return list(found)
    except OSError:
        return []


def _is_old(entry: os.DirEntry[str], before: float) -> bool:
    """Whether ``entry`` is a file, there still, and old enough."""
    try:
        is_file = entry.is_file(follow_symlinks=False)
        return is_file and entry.stat(follow_symlinks=False).st_mtime < before
    except OSError:
        return False
