"""Trying again: a broker that is restarted under a query must not end it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from pubsub.pipeline.history import Unreachable

_Result = TypeVar("_Result")
_GIVE_UP_SECONDS = 60.0
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0

logger = logging.getLogger("pubsub.pipeline")


class Retry:
    """Waits longer and longer, and gives up when nothing has come for ``seconds``."""

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
        """Something came: begin anew."""
        self._since = self._clock()
        self._wait = _FIRST_DELAY

    def wait(self, error: Unreachable) -> None:
        """Wait before the next try; raises ``error`` if it has been too long."""
        if self._clock() - self._since + self._wait > self._seconds:
            raise error
        if self._wait == _FIRST_DELAY:
            logger.warning("%s; retrying", error)
        self._sleep(self._wait)
        self._wait = min(2 * self._wait, _LONGEST_DELAY)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """What ``function`` gives, tried again while it raises Unreachable."""
        self.reset()
        while True:
            try:
                return function()
            except Unreachable as error:
                self.wait(error)
