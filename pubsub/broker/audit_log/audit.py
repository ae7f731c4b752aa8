"""The audit log: changes by operators and clients, as JSON lines.

It never contains a key, secret, token or payload.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twisted.logger import Logger

from pubsub.broker.audit_log.recent_records import RecentRecords
from pubsub.broker.audit_log.rotated_file import RotatedFile
from pubsub.broker.visible_text import visible
from pubsub.errors import ConfigurationError

log = Logger()
_KEPT_FILES = 10


class AuditLog:
    """Writes records to ``path``, or to the process's log if it is empty.

    A new file is begun every ``size`` bytes, and ten old files are kept. ``seconds`` is the clock.
    Raises ConfigurationError if the file cannot be opened.
    """

    def __init__(self, seconds: Callable[[], float], path: str = "", size: int = 0) -> None:
        self._seconds = seconds
        self._file: RotatedFile | None = None
        self.watcher: Callable[[str, dict[str, object]], None] | None = None
        """Called with each record."""
        self.recent = RecentRecords()
        self._place = (path, size)
        if path:
            self._file = _open(path, size)

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply ``audit-log`` and ``audit-size``; begin a new file if the old one was moved away.

        Raises ConfigurationError if the file cannot be opened; the old one is then kept.
        """
        place = (settings["audit-log"], settings["audit-size"])
        if place != self._place or (self._file is not None and self._file.is_moved):
            file = _open(*place) if place[0] else None
            self.close()
            self._file, self._place = file, place

    def record(self, event: str, **fields: object) -> None:
        """Write one line with the time, ``event`` and ``fields``."""
        if self.watcher is not None:
            self.watcher(event, fields)
        now = self._seconds()
        self.recent.add(int(now * 1e6), event, fields)
        when = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        line = visible(json.dumps({"time": when, "event": event, **fields}, ensure_ascii=False))
        if self._file is None:
            log.info("audit: {line}", line=line, unlimited=True)
            return
        try:
            self._file.write((line + "\n").encode(errors="backslashreplace"))
        except OSError as error:
            message = "audit-log: cannot write: {reason}; record: {line}"
            log.error(message, reason=error.strerror, line=line, unlimited=True)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()  # type: ignore[no-untyped-call]


def check_place(path: str) -> None:
    """Raise ConfigurationError if a file at ``path`` could not be opened; it is not made."""
    target = Path(path)
    number = errno.EISDIR if target.is_dir() else 0 if target.parent.is_dir() else errno.ENOENT
    if number:
        raise ConfigurationError(f"audit-log: {path}: {os.strerror(number)}")


def _open(path: str, size: int) -> RotatedFile:
    try:
        return RotatedFile(path, size, _KEPT_FILES, 0o600)
    except OSError as error:
        raise ConfigurationError(f"audit-log: {path}: {error.strerror}") from None
