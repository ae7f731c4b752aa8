"""The audit log: who changed what, as JSON lines.

It never contains a key, secret, token or payload.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from twisted.logger import Logger
from twisted.python.logfile import LogFile

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
        self._file: LogFile | None = None
        self.watcher: Callable[[str, dict[str, object]], None] = lambda event, fields: None
        """Called with each record."""
        if path:
            target = Path(path)
            try:
                self._file = LogFile(
                    target.name,
                    str(target.parent),
                    rotateLength=size or None,
                    maxRotatedFiles=_KEPT_FILES,
                    defaultMode=0o600,
                )
            except OSError as error:
                raise ConfigurationError(f"audit-log: {path}: {error.strerror}") from None

    def record(self, event: str, **fields: object) -> None:
        """Write one line with the time, ``event`` and ``fields``."""
        self.watcher(event, fields)
        when = datetime.fromtimestamp(self._seconds(), UTC).isoformat(timespec="milliseconds")
        line = _visible(json.dumps({"time": when, "event": event, **fields}, ensure_ascii=False))
        if self._file is None:
            log.info("audit: {line}", line=line)
            return
        try:
            self._file.write((line + "\n").encode(errors="backslashreplace"))
            self._file.flush()
        except OSError as error:
            message = "audit-log: cannot write: {reason}; record: {line}"
            log.error(message, reason=error.strerror, line=line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _visible(line: str) -> str:
    """Return JSON with escapes for characters that a terminal obeys or does not show."""
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line)
