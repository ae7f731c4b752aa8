"""Reads of a descriptor, also if another program has made it non-blocking for all that share it."""

from __future__ import annotations

import os
import select

_READ_BYTES = 256 * 1024


def read_some(source: int, most: int = _READ_BYTES) -> bytes:
    """Return up to ``most`` bytes, when there are some; none at the end. Raises OSError."""
    while True:
        try:
            return os.read(source, most)
        except BlockingIOError:
            select.select([source], [], [])


def read_all(source: int) -> bytes:
    """Return the bytes up to the end. Raises OSError."""
    return b"".join(iter(lambda: read_some(source), b""))
