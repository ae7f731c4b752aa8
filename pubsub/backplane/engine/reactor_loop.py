"""An asyncio event loop that runs inside Twisted's reactor, in the same thread.

The loop waits with a selector of its own, whose descriptor is readable when one of the loop's
descriptors has an event; the reactor waits for that one. A *pass* runs the ready calls of the loop
and returns. There is a pass for each event, at the time of the loop's next timer, and when the
reactor has something to run in it. No thread has to be woken.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

# Turns of the loop in a pass; calls that are ready later wait for the reactor's other events.
_TURNS = 16


class ReactorLoop(asyncio.SelectorEventLoop):
    """Runs in passes; ``after_pass`` is called after each of them, outside of the loop."""

    def __init__(self, reactor: Any, after_pass: Callable[[], object]) -> None:
        self.reactor = reactor
        self.after_pass = after_pass
        # Whether no pass has to be asked for: one runs, or the loop has not begun.
        self._passing = True
        self.is_inside = False
        """Whether the reactor runs it: ``begin`` has returned."""
        # Whether a pass has made something ready.
        self._more = False
        # Of the reactor: a pass for ready calls, and one for the next timer, with its time.
        self._call: Any = None
        self._timer: Any = None
        self._timer_at = float("inf")
        # Of the loop: the times of its timers, also of those that were cancelled.
        self._times: list[float] = []
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        self._events = _WakeDescriptor(selector.fileno(), self.run_pass)

    def begin(self, seconds: float) -> None:
        """Run at once until ``stop`` is called or the time is over; then inside the reactor."""
        limit = self.call_later(seconds, self.stop)
        with _outside_of_loops():
            self.run_forever()
        limit.cancel()
        self._passing = False
        self.is_inside = True
        self.reactor.addReader(self._events)
        self._set_timer()
        self.run_pass()

    def end(self) -> None:
        """Leave the reactor and close; called after a pass."""
        self.is_inside = False
        # The last callbacks of connections that were closed.
        self.run_pass()
        self.reactor.removeReader(self._events)
        for call in (self._call, self._timer):
            if call is not None:
                call.cancel()
        self._call = self._timer = None
        self._passing = True
        self.close()

    def run_pass(self, *calls: Callable[[], object]) -> None:
        """Run ``calls`` in the loop, and others that are ready."""
        for call in calls:
            super().call_soon(call)
        if self._passing:
            self._more = True
            return
        self._passing = self._more = True
        try:
            with _outside_of_loops():
                for _ in range(_TURNS):
                    if not self._more:
                        break
                    self._more = False
                    super().call_soon(self.stop)
                    self.run_forever()
        finally:
            self._passing = False
        if self._more:
            self._ask()
        self._set_timer()
        self.after_pass()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See ``AbstractEventLoop``."""
        if self._passing:
            self._more = True
        else:
            self._ask()
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See ``AbstractEventLoop``."""
        heapq.heappush(self._times, when)
        if not self._passing:
            self._set_timer()
        return super().call_at(when, callback, *args, context=context)

    def _ask(self) -> None:
        """Ask the reactor for a pass."""
        if self._call is None:
            self._call = self.reactor.callLater(0, self._called)

    def _called(self) -> None:
        self._call = None
        self.run_pass()

    def _set_timer(self) -> None:
        """Ask the reactor for a pass at the time of the next timer."""
        if not self._times or self._times[0] >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._times[0]
        self._timer = self.reactor.callLater(max(self._timer_at - self.time(), 0), self._timed)

    def _timed(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self.time()
        while self._times and self._times[0] <= now:
            heapq.heappop(self._times)
        self.run_pass()


@contextmanager
def _outside_of_loops() -> Iterator[None]:
    """Let a loop run in this thread although the reactor itself may run on one of asyncio."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)


@implementer(IReadDescriptor)
class _WakeDescriptor:
    """The descriptor that the reactor waits for."""

    def __init__(self, descriptor: int, run_pass: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._run_pass = run_pass

    def fileno(self) -> int:
        """See ``IFileDescriptor``."""
        return self._descriptor

    def logPrefix(self) -> str:
        """See ``ILoggingContext``."""
        return "backplane"

    def doRead(self) -> None:
        """See ``IReadDescriptor``."""
        self._run_pass()

    def connectionLost(self, reason: Failure) -> None:
        """See ``IFileDescriptor``: the reactor ends."""
