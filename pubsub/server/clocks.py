"""The clocks of the process: a monotonic one for the reactor's timers, and the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from twisted.internet.base import ReactorBase
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pubsub.broker.wall_clock import WallClock
from pubsub.store.opening.recovery import boot_id

# The attribute of a reactor whose timers are monotonic.
_MARK = "_pubsub_monotonic"
# Where a reactor keeps its timers; private to Twisted.
_TIMERS = ("_pendingTimedCalls", "_newTimedCalls")
log = Logger()


def use_monotonic_timers(reactor: IReactorTime) -> None:
    """Make ``reactor.seconds`` and all its timers monotonic; other clocks are left as they are.

    Twisted's reactors use the system's clock for everything that waits. If that is set back, no
    timer runs until it has caught up. Timers that wait already keep their remaining time.
    """
    if not isinstance(reactor, ReactorBase) or getattr(reactor, _MARK, False):
        return
    if not all(hasattr(reactor, name) for name in _TIMERS):
        log.warn("clock: timers follow the system's clock, as this Twisted has them elsewhere")
        return
    seconds: Callable[[], float] = time.monotonic
    shift = time.monotonic() - reactor.seconds()
    if reactor.running:
        # A pass over the timers may be under way, which ends when it has reached the time of its
        # beginning: the new clock continues there.
        seconds, shift = _later(-shift), 0.0
    setattr(reactor, _MARK, True)
    reactor.seconds = seconds
    # All of them, also those that were cancelled and are still in the heap, so it stays in order.
    for call in (*reactor._pendingTimedCalls, *reactor._newTimedCalls):
        call.time += shift
        call.seconds = seconds


def _later(offset: float) -> Callable[[], float]:
    """Return the monotonic clock, ``offset`` seconds later."""
    return lambda: time.monotonic() + offset


def system_wall_clock() -> WallClock:
    """Return the wall clock of this computer."""
    return WallClock(time.time, elapsed, boot_id().hex())


def elapsed() -> float:
    """Return seconds since some beginning, with those in which the computer slept if possible."""
    # After a sleep the system's clock is ahead of CLOCK_MONOTONIC, which would look like a jump.
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
