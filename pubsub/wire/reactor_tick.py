"""The turns of the reactor, without what each of them costs for nothing.

A delayed call for the end of a turn is made, sorted and run once for every turn in which anything
was published, and every event is handled in a logging context of its own that nothing here reads:
several microseconds each when messages come one by one. Reactors that go round by ``doIteration``
have an end of their turns, which is used here; epoll's events are handled directly.
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
    """Runs calls when the events of the current turn of ``reactor`` have been handled.

    To be made once a reactor; see ``at_tick_end``.
    """

    def __init__(self, reactor: ReactorBase) -> None:
        self._calls: list[Call] = []
        self._iterate = _events_of(reactor) or reactor.doIteration
        reactor.doIteration = self._turn  # type: ignore[method-assign]

    def add(self, call: Call) -> None:
        """Run ``call`` at the end of this turn; while such calls run, of the next."""
        self._calls.append(call)

    def _turn(self, delay: float | None) -> None:
        # What a timer added is not part of a turn yet: then there is nothing to sleep for.
        self._iterate(0 if self._calls else delay)
        if self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                try:
                    call()
                except Exception:
                    log.failure("at the end of a turn")


def _events_of(reactor: Any) -> _Iterate | None:
    """``EPollReactor.doPoll`` without a logging context for every event; None if it is another.

    It spares a sixth of the processor time of messages that come one by one, and takes Twisted's
    private names for it. A Twisted that has others is left to its own way.
    """
    # By name, as the class cannot be imported where there is no epoll.
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
                # Nearly always there is something to read and nothing else.
                try:
                    why, reading = selectable.doRead(), True
                except Exception as problem:
                    log.failure("in an event handler")
                    why, reading = problem, False
                if why:
                    disconnect(selectable, why, reading)
            except Exception:
                log.failure("at the end of a connection")

    return iterate


def at_tick_end(reactor: IReactorTime) -> Callable[[Call], object]:
    """What runs a call at the end of a turn of ``reactor``.

    Reactors with another loop of their own, and clocks, get a delayed call.
    """
    if not isinstance(reactor, ReactorBase) or not _goes_round(type(reactor)):
        return lambda call: reactor.callLater(0, call)
    ends = getattr(reactor.doIteration, "__self__", None)
    return (ends if isinstance(ends, TickEnds) else TickEnds(reactor)).add


def _goes_round(kind: type[ReactorBase]) -> bool:
    """Does a reactor of this class loop over ``doIteration``?"""
    return kind.run is ReactorBase.run and kind.mainLoop is ReactorBase.mainLoop
