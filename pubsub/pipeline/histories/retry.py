"""Retries, so that a query survives a restart of its broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from pubsub.pipeline.histories.history import Unreachable

_Result = TypeVar("_Result")
_GIVE_UP_SECONDS = 60.0
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0

logger = logging.getLogger("pubsub.pipeline")


class Retry:
    """Waits with growing delays, and gives up after ``seconds`` without progress."""

    def __init__(
        self,
        seconds: float = _GIVE_UP_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self.reset()

    def reset(self) -> None:
        """Start again with the shortest delay; called on progress."""
        self._since = self._clock()
        self._wait = _FIRST_DELAY

    def wait(self, error: Unreachable) -> None:
        """Wait before the next try. Raises ``error`` when the time is over."""
        if self._clock() - self._since + self._wait > self._seconds:
            raise error
        if self._wait == _FIRST_DELAY:
            logger.warning("%s; retrying", error)
        self._sleep(self._wait)
        self._wait = min(2 * self._wait, _LONGEST_DELAY)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Return the result of ``function``, retried while it raises Unreachable."""
        self.reset()
        while True:
            try:
                return function()
            except Unreachable as error:
                self.wait(error)
