"""The choice of small files of a table that are merged into one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

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
