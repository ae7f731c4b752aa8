"""The lock of a job's checkpoint, against a second job with it on the same machine.

Spark notices the second job only when both begin the same batch. It then ends one of them, which
can be the one that has run for weeks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pubsub.errors import ConfigurationError


@contextmanager
def checkpoint_lock(directory: str | None) -> Iterator[None]:
    """Hold the checkpoint in ``directory``, which is made if it does not exist.

    The end of the process releases it, also by SIGKILL. Raises ConfigurationError if another job
    holds it, and OSError. Does nothing for None, for a URL, and on a file system without locks.
    """
    if directory is None or "://" in directory:
        yield
        return
    os.makedirs(directory, exist_ok=True)
    # The directory itself, as Spark reads the names of the files in it.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def check_free(directory: str | None) -> None:
    """Raise ConfigurationError if another job holds the checkpoint in ``directory`` now."""
    if directory is not None and os.path.isdir(directory):
        with checkpoint_lock(directory):
            pass


def _lock(descriptor: int, directory: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(
            f"{directory}: another job uses this checkpoint; stop it, or give this job another "
            "directory with --checkpoint"
        ) from None
    except OSError:
        # Network file systems lock only files that are open for writing.
        return
