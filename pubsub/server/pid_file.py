"""twistd's file with the process id, which twistd writes when the services start.

twistd shows a traceback if it cannot; in a container the working directory is often read-only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pubsub.errors import StartError


def check_pid_file(twistd: Mapping[str, Any]) -> None:
    """Raise StartError if the file cannot be written; ``twistd`` are its options."""
    name = twistd.get("pidfile")
    if not name:
        return
    path = Path(twistd.get("rundir") or ".", name)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise StartError(
            f"pidfile: {path} cannot be written; give another file, or none with --pidfile= "
            "before the word pubsub"
        )
