"""Ticks of the reactor at a lower cost: calls at the end of a tick, and events of epoll.

A delayed call for the end of a tick is created, sorted and run for every tick in which something
was published. Twisted also handles every event in a logging context of its own, which nothing here
reads. Both cost several microseconds when messages arrive one by one. Reactors that loop over
``doIteration`` have an end of the tick, which is used here, and events of epoll are handled
directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

Call = Callable[[], None]
_Iterate = Callable[[float | None], None]

log = Logger()


class TickEnds:
    """Runs calls when the events of the current tick of ``reactor`` have been handled.

    Created once for a reactor; see ``at_tick_end``.
    """

    def __init__(self, reactor: ReactorBase) -> None:
        self._calls: list[Call] = []
        self._iterate = _events_of(reactor) or reactor.doIteration
        reactor.doIteration = self._tick  # type: ignore[method-assign]

    def add(self, call: Call) -> None:
        """Run ``call`` at the end of this tick, or of the next one while such calls run."""
        self._calls.append(call)

    def _tick(self, delay: float | None) -> None:
        # A timer may have added calls before the events of this tick: then do not sleep.
        self._iterate(0 if self._calls else delay)
        if self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                try:
                    call()
                except Exception:
                    log.failure("a call at the end of a tick failed")


def _events_of(reactor: Any) -> _Iterate | None:
    """Return ``EPollReactor.doPoll`` without a logging context for every event.

    None for another reactor, and for a Twisted whose private names differ. This saves a sixth of
    the processor time of messages that arrive one by one.
    """
    # By name, as the class cannot be imported on systems without epoll.
    if type(reactor).__module__ != "twisted.internet.epollreactor":
        return None
    try:
        poll, selectables = reactor._poller.poll, reactor._selectables
        handle, disconnect = reactor._doReadOrWrite, reactor._disconnectSelectable
        readable = reactor._POLL_IN
    except AttributeError:
        return None

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


def at_tick_end(reactor: IReactorTime) -> Callable[[Call], object]:
    """Return a function that runs a call at the end of the tick of ``reactor``.

    For a clock, and for reactors with another loop, it schedules a delayed call.
    """
    if not isinstance(reactor, ReactorBase) or not _loops_over_iterations(type(reactor)):
        return lambda call: reactor.callLater(0, call)
    ends = getattr(reactor.doIteration, "__self__", None)
    return (ends if isinstance(ends, TickEnds) else TickEnds(reactor)).add


def _loops_over_iterations(kind: type[ReactorBase]) -> bool:
    """Return whether a reactor of this class loops over ``doIteration``."""
    return kind.run is ReactorBase.run and kind.mainLoop is ReactorBase.mainLoop
