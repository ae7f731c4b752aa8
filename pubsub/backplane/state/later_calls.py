"""``LaterCalls``: another try after a pause, unless the broker ends before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime


class LaterCalls:
    """Calls by ``clock`` that ``close`` cancels."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._waiting: set[IDelayedCall] = set()
        self._is_closed = False

    def add(self, seconds: float, call: Callable[[], object]) -> None:
        """Call after ``seconds``; never after ``close``."""

        def due() -> None:
            self._waiting.discard(timer)
            call()

        if not self._is_closed:
            timer = self._clock.callLater(seconds, due)
            self._waiting.add(timer)

    def close(self) -> None:
        """The broker ends."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, set()
        for timer in waiting:
            timer.cancel()
