"""Ticks of the reactor at a lower cost: calls at the end of a tick, and events of epoll.

A delayed call for the end of a tick is created, sorted and run for every tick in which something
was published. Twisted also handles every event in a logging context of its own, which nothing here
reads. Both cost several microseconds when messages arrive one by one. Reactors that loop over
``doIteration`` have an end of the tick, which is used here, and events of epoll are handled
directly. Both are tricks (see ``pubsub.tuning``) that can be turned off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pubsub.tuning import PLAIN_EVENTS, TICK_HOOK, Trick, Tuning

Call = Callable[[], None]
_Iterate = Callable[[float | None], None]

log = Logger()
# A third look for further events brings few.
_LOOKS = 2


class DelayedTickEnds:
    """Runs calls in a delayed call of ``clock``, in the order in which they were added."""

    number = 0
    """See ``Ticks``: it is not known which tick it is."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._calls: list[Call] = []

    def add(self, call: Call) -> None:
        """Run ``call`` after the events of this tick, or of the next one while such calls run."""
        if not self._calls:
            self._clock.callLater(0, self._run)
        self._calls.append(call)

    def look_again(self, while_true: Callable[[], bool]) -> None:
        """See ``TickEnds``: without effect, as the loop of the reactor is not known."""

    def _run(self) -> None:
        calls, self._calls = self._calls, []
        _run_all(calls)


class TickEnds:
    """Runs calls when the events of the current tick of ``reactor`` have been handled.

    Created once for a reactor; see ``ticks_of``. ``number`` is that of the current tick, and 0
    between two of them, when timers run.
    """

    def __init__(self, reactor: ReactorBase, plain_events: bool) -> None:
        self._calls: list[Call] = []
        self._wanted: Callable[[], bool] | None = None
        self.number = self._ticks = 0
        plain = _plain_events_of(reactor) if plain_events else None
        self._iterate = plain or reactor.doIteration
        reactor.doIteration = self._tick  # type: ignore[method-assign]

    def add(self, call: Call) -> None:
        """Run ``call`` at the end of this tick, or of the next one while such calls run."""
        self._calls.append(call)

    def look_again(self, while_true: Callable[[], bool]) -> None:
        """Also handle events that came while those of this tick were handled, up to two times.

        For a tick with calls, which follow these events. ``while_true`` is asked each time.
        """
        self._wanted = while_true

    def _tick(self, delay: float | None) -> None:
        self.number = self._ticks = self._ticks + 1
        # A timer may have added calls before the events of this tick: then do not sleep.
        self._iterate(0 if self._calls else delay)
        if self._calls:
            if self._wanted is not None:
                self._look(self._wanted)
            calls, self._calls = self._calls, []
            _run_all(calls)
        self.number = 0

    def _look(self, wanted: Callable[[], bool]) -> None:
        looks = _LOOKS
        while looks and wanted():
            looks -= 1
            self._iterate(0)
        # Also if the last events asked for more: the tick ends here.
        self._wanted = None


def _run_all(calls: list[Call]) -> None:
    for call in calls:
        try:
            call()
        except Exception:
            log.failure("a call at the end of a tick failed")


def _has_epoll(reactor: object) -> bool:
    # By name, as the class cannot be imported on systems without epoll.
    return type(reactor).__module__ == "twisted.internet.epollreactor"


def _plain_events_of(reactor: Any) -> _Iterate | None:
    """Return ``EPollReactor.doPoll`` without a logging context for every event.

    None for another reactor.
    """
    if not _has_epoll(reactor):
        return None
    poll, selectables = reactor._poller.poll, reactor._selectables
    handle, disconnect = reactor._doReadOrWrite, reactor._disconnectSelectable
    readable = reactor._POLL_IN

    def iterate(timeout: float | None) -> None:
        for fd, event in poll(-1 if timeout is None else timeout, len(selectables)):
            selectable = selectables.get(fd)
            if selectable is None:
                continue
            try:
                if event != readable:
                    handle(selectable, fd, event)
                    continue
                # Most events are input alone.
                try:
                    reason, reading = selectable.doRead(), True
                except Exception as problem:
                    log.failure("reading from a connection failed; it is closed")
                    reason, reading = problem, False
                if reason:
                    disconnect(selectable, reason, reading)
            except Exception:
                log.failure("closing a connection failed")

    return iterate


def ticks_of(reactor: IReactorTime, tuning: Tuning) -> TickEnds | DelayedTickEnds:
    """Return the ticks of ``reactor``, to run calls at their ends.

    Without the trick, for a clock, and for reactors with another loop, these are delayed calls. A
    reactor that is hooked stays so.
    """
    if TICK_HOOK not in tuning or not isinstance(reactor, ReactorBase):
        return DelayedTickEnds(reactor)
    if not _loops_over_iterations(type(reactor)):
        return DelayedTickEnds(reactor)
    ends = getattr(reactor.doIteration, "__self__", None)
    if not isinstance(ends, TickEnds):
        ends = TickEnds(reactor, PLAIN_EVENTS in tuning)
    return ends


def idle_tricks(reactor: object, tuning: Tuning) -> list[Trick]:
    """Return the tricks of ``tuning`` that have no effect with ``reactor``."""
    loops = isinstance(reactor, ReactorBase) and _loops_over_iterations(type(reactor))
    idle = [] if loops and _has_epoll(reactor) else [PLAIN_EVENTS]
    if not loops:
        idle.insert(0, TICK_HOOK)
    return [trick for trick in idle if trick in tuning]


def at_tick_end(reactor: IReactorTime, tuning: Tuning) -> Callable[[Call], object]:
    """Return a function that runs a call at the end of the tick of ``reactor``."""
    return ticks_of(reactor, tuning).add


def _loops_over_iterations(kind: type[ReactorBase]) -> bool:
    """Return whether a reactor of this class loops over ``doIteration``."""
    return kind.run is ReactorBase.run and kind.mainLoop is ReactorBase.mainLoop
