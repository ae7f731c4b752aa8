"""What is done about freed memory: by the C library, which decides what large messages cost, and
by the garbage collector, which decides for how long everything stands still."""

from __future__ import annotations

import ctypes
import gc

# From glibc's malloc.h, which no module of Python has.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The most that glibc takes from its heap instead of mapping it, and what it keeps at its end.
_MAPPED_FROM = 32 * 1024 * 1024
_KEPT = 64 * 1024 * 1024


def keep_freed_memory() -> None:
    """Have this process keep up to 64 MiB of freed memory at the end of its heap; see mallopt(3).

    As it is set up, glibc gives back all but twice the largest piece so far: with messages of
    1 MiB nearly every one, and the kernel clears each page again for the next, which was two
    thirds of what such a message cost. Another C library is left as it is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    # Both, as setting either ends what glibc adjusts by itself.
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def collect_less() -> None:
    """Have the garbage collector leave out what is there now and stays: modules and their like.

    To look through that takes milliseconds, in which no message is handled, and frees nothing.
    """
    gc.collect()
    gc.freeze()
