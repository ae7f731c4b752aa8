"""The audit log: who changed what on whose behalf, as JSON lines.

No key, secret, token or payload is ever in it.
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
_KEPT = 10


class AuditLog:
    """Writes records to ``path``, a new file every ``size`` bytes, of which ten are kept.

    Without a path they go to the process's log. ``seconds`` is the clock.
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
                    maxRotatedFiles=_KEPT,
                    defaultMode=0o600,
                )
            except OSError as error:
                raise ConfigurationError(f"audit-log: {path}: {error.strerror}") from None

    def record(self, event: str, **fields: object) -> None:
        """One line: the time, ``event`` and ``fields``."""
        self.watcher(event, fields)
        when = datetime.fromtimestamp(self._seconds(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": when, "event": event, **fields}, ensure_ascii=False)
        if self._file is None:
            log.info("audit: {line}", line=line)
            return
        try:
            self._file.write((line + "\n").encode(errors="backslashreplace"))
            self._file.flush()
        except OSError as error:
            log.error("audit: cannot write: {reason}; {line}", reason=error.strerror, line=line)

    def close(self) -> None:
        """Nothing more is recorded."""
        if self._file is not None:
            self._file.close()
