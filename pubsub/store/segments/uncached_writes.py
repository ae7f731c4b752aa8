"""Large writes whose pages leave the page cache when they are on disk.

A log that grows by hundreds of megabytes a second needs as much memory for the page cache, which
the system first has to take from elsewhere. Linux can drop the pages of a write as soon as they are
on disk (RWF_DONTCACHE), so that the next writes use the same memory again. It also begins to write
them to the disk at once, before the sync. Readers that come later read them from the disk.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from mmap import PAGESIZE

from pubsub.store.segments.log_files import Buffers, few, rest_of, write_all

LARGE = 512 * 1024
"""Bytes from which on a write does not stay in the page cache. Smaller groups have publishers that
wait for them, and readers that may soon read them."""
_FIRST_RELEASE = (6, 16)
"""The release of Linux from which on this is used. 6.14 has the flag, and drops pages that have
been written to again; 6.15 refuses the flag."""
_DONTCACHE = 0x80
_REFUSALS = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))


def has_uncached_writes(system: str, release: str) -> bool:
    """Return whether the kernel with this name and release has such writes; not every file has."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if system != "Linux" or numbers is None:
        return False
    return (int(numbers[1]), int(numbers[2])) >= _FIRST_RELEASE


class RecordWriter:
    """Writes records to files, large ones without keeping their pages if ``uncached``."""

    def __init__(self, uncached: bool) -> None:
        self._uncached = uncached and has_uncached_writes(os.uname().sysname, os.uname().release)

    def write(self, file: int, buffers: Buffers, position: int, length: int) -> None:
        """Write all of ``buffers``, of ``length`` bytes, at ``position``. Raises OSError."""
        written = 0
        buffers = few(buffers)
        if self._uncached and length >= LARGE:
            # The last page stays, because the next write begins in it: it would be read again.
            whole = (position + length) // PAGESIZE * PAGESIZE - position
            written = self._write_uncached(file, first_of(buffers, whole), position)
        write_all(file, rest_of(buffers, written) if written else buffers, position + written)

    def _write_uncached(self, file: int, buffers: Buffers, position: int) -> int:
        """Return the number of bytes that were written, 0 if the file has no such writes."""
        try:
            return os.pwritev(file, buffers, position, _DONTCACHE)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            self._uncached = False
            return 0


def first_of(buffers: Buffers, size: int) -> Sequence[bytes | memoryview]:
    """Return the first ``size`` bytes of ``buffers``."""
    first: list[bytes | memoryview] = []
    for buffer in buffers:
        if len(buffer) >= size:
            first.append(memoryview(buffer)[:size])
            break
        first.append(buffer)
        size -= len(buffer)
    return first
