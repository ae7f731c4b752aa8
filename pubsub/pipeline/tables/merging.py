"""The choice of small files of a table that are merged into one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pubsub.pipeline.tables.storage import UnreadableFile

FULL_FILE_BYTES = 128 * 1024 * 1024
"""Compaction does not merge files of this size and above."""
_MIN_MERGED_FILES = 4
_File = TypeVar("_File")


def merge_groups(files: Iterable[_File], size_of: Callable[[_File], int]) -> list[list[_File]]:
    """Return groups of adjacent files that fill a file, or have enough files to be worth a merge.

    ``size_of`` returns the bytes of a file.
    """
    groups: list[list[_File]] = [[]]
    size = 0
    for file in files:
        if size >= FULL_FILE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += size_of(file)
    return [group for group in groups if len(group) >= _MIN_MERGED_FILES]


class MergeFailures:
    """The first failure of merges that go on: a file that is damaged or missing stays as it is.

    Its group alone is not merged. Otherwise the small files of all further groups would remain, in
    each compaction.
    """

    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note that a file cannot be read; other errors are raised."""
        try:
            yield
        except (UnreadableFile, FileNotFoundError) as error:
            self._first = self._first or error

    def raise_first(self) -> None:
        """Raise the first failure, if any."""
        if self._first is not None:
            raise self._first
