"""Pauses of the process: the delay of the reactor, and the time of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeAlias
from weakref import ref

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

# Seconds between two measurements of the reactor's lag.
_PERIOD = 0.1
Callback: TypeAlias = Callable[[str, dict[str, int]], None]


class Worst:
    """The worst of the values of the last second, and their total."""

    __slots__ = ("_current", "_last", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._current = self._last = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.total += value
        if value > self._current:
            self._current = value

    def second_passed(self) -> None:
        """A second has passed."""
        self._last, self._current = self._current, 0.0

    @property
    def worst(self) -> float:
        """The largest value of the last second and of this one."""
        return max(self._last, self._current)


class ReactorLag:
    """Measures the delay of a timer: the time in which the reactor handled no other event.

    ``lag`` has the seconds of each measurement; ``measured`` is called after it.
    """

    def __init__(self, clock: IReactorTime, measured: Callable[[], object]) -> None:
        self.lag = Worst()
        self._seconds = clock.seconds
        self._measured = measured
        self._due = 0.0
        self._timer = LoopingCall(self._measure)
        self._timer.clock = clock

    def start(self) -> None:
        """Measure from now on."""
        self._due = self._seconds() + _PERIOD
        self._timer.start(_PERIOD, now=False)

    def stop(self) -> None:
        """Measure no more; may be called before ``start``."""
        if self._timer.running:
            self._timer.stop()

    def _measure(self) -> None:
        now = self._seconds()
        self.lag.add(max(now - self._due, 0.0))
        self._due = now + _PERIOD
        self._measured()


class CollectorPauses:
    """Measures the runs of Python's garbage collector, which stop everything else.

    ``pauses`` has the seconds of each, in whichever thread it happened.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.pauses = Worst()
        self._seconds = seconds
        self._since = 0.0
        self._callback: Callback | None = None

    def start(self) -> None:
        """Measure from now on."""
        if self._callback is None:
            self._callback = _reporting_to(self)
            gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """Measure no more; may be called before ``start``."""
        callback, self._callback = self._callback, None
        if callback is not None:
            gc.callbacks.remove(callback)

    def report(self, phase: str) -> None:
        """A collection starts or stops."""
        if phase == "start":
            self._since = self._seconds()
        else:
            self.pauses.add(self._seconds() - self._since)


def _reporting_to(pauses: CollectorPauses) -> Callback:
    """Return a callback that does not keep a broker alive that was never stopped."""

    def callback(phase: str, info: dict[str, int]) -> None:
        pauses = reference()
        if pauses is not None:
            pauses.report(phase)

    def remove(gone: object) -> None:
        if callback in gc.callbacks:
            gc.callbacks.remove(callback)

    reference = ref(pauses, remove)
    return callback
