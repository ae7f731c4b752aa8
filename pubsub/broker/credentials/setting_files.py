"""Files that settings name: reading them, and the warning about secrets that others can read."""

from __future__ import annotations

import os
import stat

from twisted.logger import Logger

from pubsub.errors import ConfigurationError
from pubsub.settings import is_credential
from pubsub.small_file import read_regular

log = Logger()


def read_file(name: str, path: str) -> bytes:
    """Return the content of the file ``path`` of the setting ``name``.

    Raises ConfigurationError.
    """
    try:
        return read_regular(path)
    except OSError as error:
        raise ConfigurationError(
            f"{name}: {path}: {error.strerror}; name a file that the broker can read"
        ) from None


def warn_if_readable(name: str, path: str, by_group: bool = True) -> None:
    """Log a warning if other users of the system can read the secret in the file ``path``.

    Without ``by_group`` its group may. That of a file of root always may: only so can root give the
    file to a broker with another user, as Kubernetes does, and PostgreSQL allows it too.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        # It was removed after it was read.
        return
    mask = stat.S_IRGRP | stat.S_IROTH if by_group and found.st_uid else stat.S_IROTH
    if found.st_mode & mask and not is_credential(path):
        log.warn("{name}: {path} can be read by others; chmod 600 it", name=name, path=path)
