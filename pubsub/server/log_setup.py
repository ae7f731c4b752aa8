"""The log of the process under twistd: its format, its levels, and where it goes.

Of twistd's own options ``--logger`` replaces all of this, and ``--logfile``, ``--syslog`` and
``--prefix`` select the destination. Without them they go to standard output with ``--nodaemon``,
and else to twistd.log.
"""

from __future__ import annotations

import os
import signal
import sys
import syslog
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import IO, Any, cast

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorFromThreads, IReactorTime
from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogObserver,
    LogEvent,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
)
from twisted.python.components import Componentized
from zope.interface import implementer

from pubsub.broker.audit_log.rotated_file import RotatedFile
from pubsub.errors import StartError
from pubsub.server.log_levels import set_levels
from pubsub.server.log_lines import (
    JSON,
    Render,
    json_line,
    priority_of,
    timed_text,
    untimed_text,
    with_priorities,
)
from pubsub.server.log_rationing import Rationing
from pubsub.wire.connection_log import NAMESPACE

log = Logger()
_DEFAULT_FILE = "twistd.log"


class ProcessLog:
    """The levels of the log, which may change, and its observer.

    ``settings`` are those of the broker, ``twistd`` the options of the command (see
    ``ServerOptions``). ``call_later`` runs a call after some seconds, from any thread.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        twistd: Mapping[str, Any],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._json = settings["log-format"] == JSON
        self._twistd = twistd
        self._call_later = call_later
        self._predicate = LogLevelFilterPredicate()
        self._rationing: Rationing | None = None
        self._watcher: Callable[[bool], object] = lambda shown: None
        self.configure(settings)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Use other levels from now on."""
        set_levels(self._predicate, settings["log-level"])
        self._watcher(self.shows_connections)

    def watch(self, call: Callable[[bool], object]) -> None:
        """Call ``call`` now, and when the levels change, with ``shows_connections``."""
        self._watcher = call
        call(self.shows_connections)

    @property
    def shows_connections(self) -> bool:
        """Whether the log has lines for connections that begin and end."""
        shown: bool = self._predicate.logLevelForNamespace(NAMESPACE) <= LogLevel.debug
        return shown

    def observer(self) -> ILogObserver:
        """Return the observer; opens the file, or raises StartError."""
        self._rationing = Rationing(self._output(), time.monotonic, self._call_later)
        made: ILogObserver = FilteringLogObserver(self._rationing, [self._predicate])
        return made

    def flush(self) -> None:
        """Write the numbers of withheld lines."""
        if self._rationing is not None:
            self._rationing.flush()

    def _output(self) -> ILogObserver:
        if self._twistd.get("syslog"):
            _at_signal(_report_no_file)
            render = json_line if self._json else untimed_text
            return SystemLog(self._twistd.get("prefix") or "pubsub", render)
        path = self._twistd.get("logfile") or ""
        if path == "-" or (self._twistd.get("nodaemon") and not path):
            if not self._twistd.get("nodaemon"):
                raise SystemExit("pubsub: daemons cannot log to standard output; give a --logfile")
            _at_signal(_report_no_file)
            return _file_observer(sys.stdout, self._json)
        path = path or _DEFAULT_FILE
        try:
            file = RotatedFile(path)
        except OSError as error:
            raise StartError(f"logfile: {path}: {error.strerror}") from None
        _at_signal(partial(_begin_new, file))
        return LogFileObserver(file, json_line if self._json else timed_text)


class LoggedProcess(MultiService):
    """The root of the services under twistd; its application gets the observer of ``log``."""

    def __init__(self, log: ProcessLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log

    def setServiceParent(self, parent: object) -> None:
        """See IService; twistd begins to log afterwards."""
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]
        if isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._log.observer())

    def stopService(self) -> Deferred[None]:
        """Stop the services, then write the numbers of withheld lines."""
        stopped: Deferred[object] = maybeDeferred(super().stopService)
        return stopped.addCallback(lambda _: self._log.flush())


@implementer(ILogObserver)
class SystemLog:
    """Writes to syslog, with the priority of each event's level."""

    def __init__(self, prefix: str, render: Render) -> None:
        syslog.openlog(prefix)
        self._render = render

    def __call__(self, event: LogEvent) -> None:
        """See ILogObserver."""
        for line in self._render(event).splitlines():
            # A NUL would end the line, and is refused; ``visible`` has removed it.
            syslog.syslog(priority_of(event), line)


@implementer(ILogObserver)
class LogFileObserver:
    """Writes to a file; a line that it does not take goes to standard error, with the reason."""

    def __init__(self, file: RotatedFile, render: Render) -> None:
        self._file = file
        self._render = render

    def __call__(self, event: LogEvent) -> None:
        """See ILogObserver."""
        line = self._render(event)
        try:
            self._file.write(line)
        except OSError as error:
            reason = f"logfile: {self._file.path}: cannot write: {error.strerror}; line: "
            if sys.__stderr__ is not None:
                # It may be on the same disk.
                with suppress(OSError):
                    sys.__stderr__.write(error_line(f"pubsub: {reason}{line}"))


def _file_observer(file: IO[Any], as_json: bool) -> ILogObserver:
    journal = is_journal(file, os.environ)
    render = json_line if as_json else untimed_text if journal else timed_text
    observer: ILogObserver = FileLogObserver(file, with_priorities(render) if journal else render)
    return observer


class FailedStart(SystemExit):
    """Ends a broker that cannot start; ``line`` goes to standard error."""

    def __init__(self, line: str) -> None:
        super().__init__(error_line(line))


def error_line(line: str) -> str:
    """Return ``line`` for standard error.

    In systemd's journal it has the priority of an error, as a line of the log has.
    """
    prefix = f"<{syslog.LOG_ERR}>" if is_journal(sys.__stderr__, os.environ) else ""
    return prefix + line


def is_journal(file: IO[Any] | None, environ: Mapping[str, str]) -> bool:
    """Return whether systemd's journal reads ``file`` (see ``$JOURNAL_STREAM`` in systemd.exec)."""
    try:
        device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
        status = os.fstat(cast(IO[Any], file).fileno())
        return (int(device), int(inode)) == (status.st_dev, status.st_ino)
    except (OSError, ValueError, AttributeError):
        return False


def _at_signal(act: Callable[[], object]) -> None:
    """Call ``act`` in the reactor's thread at SIGUSR1, which would end the process otherwise."""
    if signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, None):
        return

    def handle(number: int, frame: FrameType | None) -> None:
        from twisted.internet import reactor

        cast(IReactorFromThreads, reactor).callFromThread(act)

    signal.signal(signal.SIGUSR1, handle)


def _report_no_file() -> None:
    log.info("SIGUSR1 is ignored: the broker does not write its log into a file itself")


def _begin_new(file: RotatedFile) -> None:
    try:
        file.begin_new()
    except OSError as error:
        # This line opens the file again.
        log.error(
            "logfile: {path}: cannot begin a new file: {reason}; make room and send SIGUSR1 again",
            path=file.path,
            reason=error.strerror,
        )


def call_later_from_threads(reactor: object) -> Callable[[float, Callable[[], None]], object]:
    """Return ``callLater`` of ``reactor``, which may be called in any thread."""
    threads, timers = cast(IReactorFromThreads, reactor), cast(IReactorTime, reactor)
    return lambda seconds, call: threads.callFromThread(timers.callLater, seconds, call)
