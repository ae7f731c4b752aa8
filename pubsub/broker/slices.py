"""Slices: work that takes long is done in pieces, and the reactor serves others in between.

Work is a generator whose steps take some 20 µs at most. In a reactor tick there are ``STEPS``
steps for new work and as many for work that was begun before, for any number of requests, so
that a tick is as short with many long requests as with one. Steps are counted rather than timed:
the same input is always cut in the same places (docs/decisions/0050-long-requests-in-slices.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()
# Objects that are freed in a step.
_FREED = 20
STEPS = 50
"""Steps in a tick of all work that begins in it, and of all that was begun before."""

Work: TypeAlias = Generator[None, None, None]
"""Work that yields after every step."""


class Slices:
    """Does work in slices.

    ``at_tick_end`` runs a call at the end of the reactor tick, or of the next one if such calls run
    already.
    """

    def __init__(self, at_tick_end: Callable[[Callable[[], None]], object]) -> None:
        self._at_tick_end = at_tick_end
        self._begun: deque[SlicedWork] = deque()
        self._left = STEPS
        # Whether `_go_on` runs, or is going to. Two of them would take twice the steps of a tick.
        self._goes_on = False

    def __len__(self) -> int:
        """The number of pieces of work that are begun and not finished."""
        return len(self._begun)

    def run(self, work: Work, then: Callable[[], None] | None = None) -> SlicedWork | None:
        """Do as much of ``work`` as fits into this tick now, and the rest in the ticks after it.

        Returns None if there is no rest. Otherwise ``then`` is called when the rest is done. An
        exception is the caller's until this returns; later it is logged and ends the work.
        """
        if self._left == STEPS:
            self._at_tick_end(self._begin_tick)
        while self._left > 0:
            self._left -= 1
            if next(work, work) is work:
                return None
        return self.run_later(work, then)

    def finish(self, work: Work) -> Deferred[None]:
        """Do ``work``; the result fires when it is done, or with its exception."""
        done: Deferred[None] = Deferred()

        def report() -> Work:
            try:
                yield from work
            except Exception:
                done.errback(Failure())
            else:
                done.callback(None)

        self.run(report())
        return done

    def run_later(self, work: Work, then: Callable[[], None] | None = None) -> SlicedWork:
        """Do ``work`` in the ticks after this one; see ``run``."""
        if not self._goes_on:
            self._goes_on = True
            self._at_tick_end(self._go_on)
        sliced = SlicedWork(work, then)
        self._begun.append(sliced)
        return sliced

    def release(self, objects: list[Any]) -> None:
        """Give up ``objects``, some in each tick: to free very many takes milliseconds."""
        if objects:
            self.run_later(_released(objects))

    def _begin_tick(self) -> None:
        self._left = STEPS

    def _go_on(self) -> None:
        """Do one slice of the work that was begun, a step of each in turn."""
        begun = self._begun
        try:
            for _ in range(STEPS):
                if not begun:
                    return
                sliced = begun.popleft()
                if sliced.step():
                    begun.append(sliced)
        finally:
            self._goes_on = bool(begun)
            if begun:
                self._at_tick_end(self._go_on)


def _released(objects: list[Any]) -> Work:
    while objects:
        del objects[-_FREED:]
        yield


class SlicedWork:
    """Work that was begun. With ``stop`` the rest of it stays undone."""

    __slots__ = ("_stopped", "_then", "_work")

    def __init__(self, work: Work, then: Callable[[], None] | None) -> None:
        self._work = work
        self._then = then
        self._stopped = False

    def stop(self) -> None:
        """End the work before its next step; it may be called within a step, and again."""
        self._stopped = True
        self._then = None

    def step(self) -> bool:
        """Do one step; return False if there is no further one."""
        try:
            if self._stopped:
                self._work.close()
            elif next(self._work, self) is not self:
                return True
            elif self._then is not None:
                self._then()
        except Exception:
            log.failure("a long request failed; the rest of it is not carried out")
        return False
