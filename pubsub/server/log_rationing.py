"""The rationing of repeated log lines, so that clients cannot fill a disk with them.

Of each kind of line, that is of one format and one namespace, ``LINES`` are written in ``SECONDS``;
then one line has the number of the others. Lines with ``unlimited``, those of the level debug,
and output of programs are not rationed. Counters of the broker decide before that which totals
are worth a line (see ``Counters``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock

from twisted.logger import ILogObserver, LogEvent, LogLevel
from zope.interface import implementer

LINES, SECONDS = 10, 10.0
# Kinds of lines that are remembered. There are no more in the code of the broker, but a library may
# make formats at run time.
_KINDS = 1000
LogKind = tuple[object, object]


@dataclass(slots=True)
class _Window:
    """The lines of one kind since ``begin``."""

    begin: float
    written: int = 0
    withheld: int = 0
    last: LogEvent | None = None


@implementer(ILogObserver)
class Rationing:
    """Passes events on to ``observer``, within limits.

    ``seconds`` is a monotonic clock. ``call_later`` runs a call after some seconds; it is called
    from any thread, as events come from any.
    """

    def __init__(
        self,
        observer: ILogObserver,
        seconds: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._observer = observer
        self._seconds = seconds
        self._call_later = call_later
        # Reentrant: handlers of signals log, and interrupt this thread while it holds the lock.
        self._lock = RLock()
        self._windows: dict[LogKind, _Window] = {}
        self._waiting = False

    def __call__(self, event: LogEvent) -> None:
        """See ILogObserver."""
        if _is_unlimited(event):
            self._observer(event)
            return
        kind = (event.get("log_namespace"), event.get("log_format"))
        with self._lock:
            reports = self._end_windows(len(self._windows) >= _KINDS)
            window = self._windows.get(kind)
            if window is None:
                window = self._windows[kind] = _Window(self._seconds())
            passes = window.written < LINES
            if passes:
                window.written += 1
            else:
                window.withheld += 1
                window.last = event
            wait = not passes and not self._waiting
            self._waiting |= wait
        for report in reports:
            self._observer(report)
        if passes:
            self._observer(event)
        if wait:
            self._call_later(SECONDS, self._report)

    def flush(self) -> None:
        """Write the number of withheld lines, and the last of them."""
        self._write_reports(True)

    def _report(self) -> None:
        self._waiting = False
        self._write_reports(False)

    def _write_reports(self, all: bool) -> None:
        with self._lock:
            reports = self._end_windows(all)
            wait = not self._waiting and any(w.withheld for w in list(self._windows.values()))
            self._waiting |= wait
        for report in reports:
            self._observer(report)
        if wait:
            self._call_later(SECONDS, self._report)

    def _end_windows(self, all: bool) -> list[LogEvent]:
        """Forget the windows that are over; return the lines to write about them."""
        now = self._seconds()
        over = [k for k, w in list(self._windows.items()) if all or now - w.begin >= SECONDS]
        windows = [self._windows.pop(kind, None) for kind in over]
        return [_report_of(w.last, w.withheld) for w in windows if w and w.last is not None]


def _is_unlimited(event: LogEvent) -> bool:
    return (
        event.get("unlimited", False)
        or event.get("log_level") is LogLevel.debug
        or "log_io" in event
    )


def _report_of(last: LogEvent, count: int) -> LogEvent:
    """Return an event that stands for ``count`` events; the last of them was ``last``."""
    form = "repeated {repeats} times, the last: " + (last.get("log_format") or "")
    return {**last, "log_format": form, "repeats": count}
