"""The memory of this process."""

from __future__ import annotations

import os
from contextlib import suppress

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int | None:
    """Return the bytes of this process that are in main memory; None where Linux's proc is not."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
    return None
