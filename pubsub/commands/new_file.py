"""New files with secrets: complete and on disk, or not there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pubsub.durable_names import sync_names


def write_new(path: str, text: str, mode: int) -> None:
    """Write ``text`` to the new file ``path``; it is on disk on return.

    A file that could not be written to its end does not stay, as part of a secret is a weak one.
    Raises FileExistsError instead of replacing a file, and OSError.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sync_names(Path(path).parent)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(path)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, path) from None
        raise
