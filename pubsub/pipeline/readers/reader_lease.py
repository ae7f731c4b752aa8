"""The lease of a query's reader name: two running queries cannot have the same ``readerName``.

The lease of a killed process ends within seconds, and a restarted query waits for that.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn, Protocol
from uuid import uuid4

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.histories.history import ReaderInUse
from pubsub.pipeline.histories.retry import Retry, logger

# A holder renews its lease this often while the lease lasts.
_RENEWALS = 4
_POLL_SECONDS, _LEAST_SECONDS = 1.0, 0.05
_END_SECONDS = 1.0


class LeasedHistory(Protocol):
    """A history, as a lease uses it. Both methods can raise Unreachable or Rejected."""

    def hold_reader(self, reader: str, holder: str) -> float:
        """Begin or renew the lease and return its seconds. Raises ReaderInUse.

        Zero: this history has no leases.
        """

    def release_reader(self, reader: str, holder: str) -> None:
        """End the lease, if ``holder`` has it."""


class ReaderLease:
    """Holds ``reader`` at all ``histories`` from ``begin`` to ``end``, or to the process's end."""

    def __init__(
        self,
        reader: str,
        histories: Sequence[LeasedHistory],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reader = reader
        self._histories = histories
        self._clock = clock
        self._sleep = sleep
        self._holder = uuid4().hex
        self._ended = threading.Event()
        self._lost: ReaderInUse | None = None

    def begin(self) -> None:
        """Hold the name and renew that in a thread.

        Waits for a lease that a killed query has left behind. Raises ConfigurationError if another
        query renews it, and Unreachable or Rejected.
        """
        seconds = [self._begin_at(history) for history in self._histories]
        if any(seconds):
            interval = min(filter(None, seconds)) / _RENEWALS
            threading.Thread(target=self._renew_until_end, args=(interval,), daemon=True).start()

    def _begin_at(self, history: LeasedHistory) -> float:
        left = math.inf
        while True:
            try:
                return Retry(clock=self._clock, sleep=self._sleep).call(
                    lambda: history.hold_reader(self._reader, self._holder)
                )
            except ReaderInUse as error:
                if error.seconds >= left:
                    # The lease was renewed: the other query runs.
                    self._refuse()
                left = error.seconds
                self._sleep(min(max(left, _LEAST_SECONDS), _POLL_SECONDS))

    def end_at_termination(self) -> None:
        """End the lease at SIGTERM, with which Spark ends the process; then let the signal act.

        Does nothing outside of the main thread, which alone can handle signals.
        """
        if threading.current_thread() is not threading.main_thread():
            return

        def end(number: int, frame: FrameType | None) -> None:
            # Spark sends the signal twice.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            # In a thread, as this one may hold locks, and the broker may not answer.
            thread = threading.Thread(target=self.end, daemon=True)
            thread.start()
            thread.join(_END_SECONDS)
            signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

        previous = signal.signal(signal.SIGTERM, end)

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            f"option readerName: another stream has the name {self._reader!r}; "
            "choose another name, stop the other query, or set exclusiveReader=false"
        ) from None

    def check(self) -> None:
        """Raise ConfigurationError if another query has taken the name."""
        if self._lost is not None:
            self._refuse()

    def _renew_until_end(self, interval: float) -> None:
        while not self._ended.wait(interval):
            self.renew()

    def renew(self) -> None:
        """Renew the lease. A failure is only logged: the lease may last until the next time."""
        for history in self._histories:
            try:
                history.hold_reader(self._reader, self._holder)
            except ReaderInUse as error:
                self._lost = error
            except PubSubError as error:
                logger.info("cannot renew the lease of reader %s: %s", self._reader, error)

    def end(self) -> None:
        """Release the name."""
        self._ended.set()
        for history in self._histories:
            try:
                history.release_reader(self._reader, self._holder)
            except PubSubError as error:
                logger.info("cannot release the reader %s: %s", self._reader, error)
