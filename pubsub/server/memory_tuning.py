"""Memory settings of the process: the C library's heap, Python's garbage collector, OpenBLAS."""

from __future__ import annotations

import ctypes
import gc
import os

from pubsub.tuning import FROZEN_START, KEPT_MEMORY, Tuning

# From glibc's malloc.h; the standard library does not define them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# Allocations from this size on are mapped, and this many free bytes stay at the heap's end.
_MAPPED_FROM = 32 * 1024 * 1024
_KEPT = 64 * 1024 * 1024


def tune_memory(tuning: Tuning) -> None:
    """Use the tricks of ``tuning`` in this process; called when the broker has been made."""
    if KEPT_MEMORY in tuning:
        keep_freed_memory()
    if FROZEN_START in tuning:
        freeze_startup_objects()


def use_no_blas_threads() -> None:
    """Let numpy, which Arrow imports, calculate without threads, unless the environment has more.

    OpenBLAS begins a thread for each core, with 40 MiB of addresses each, which nothing here uses.
    If it cannot begin one, at a limit of memory or threads, it sends SIGINT to its own process.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory at the end of the process's heap; see mallopt(3).

    By default glibc returns all but twice the largest allocation so far. With messages of 1 MiB
    that is nearly every one, and the kernel has to clear the pages again for the next: two thirds
    of the cost of such a message. Does nothing with another C library.

    There is one heap: each thread would have one of its own, and keep as much. Threads hardly ever
    wait for it, because they allocate while they have the interpreter.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    # Both, because setting either one stops glibc from adjusting the other.
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)
    mallopt(_M_ARENA_MAX, 1)


def freeze_startup_objects() -> None:
    """Exclude the objects that exist now from garbage collection: modules, classes and others.

    Traversing them takes milliseconds, in which no message is handled, and frees nothing.
    """
    gc.collect()
    gc.freeze()
