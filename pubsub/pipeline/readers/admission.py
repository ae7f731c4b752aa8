"""Admits messages to a batch: up to the limits, of each stretch in proportion."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pubsub.pipeline.histories.topic_amounts import Amount
from pubsub.pipeline.readers.batch_limits import divide_limit, fitting_stop

Measure = Callable[[int, int], Amount]
# A search for a range with messages; more of them only cost an empty batch.
_SEARCHES = 8


@dataclass(frozen=True, slots=True)
class WaitingMessages:
    """Messages that wait between two offsets, and how to measure a part of them."""

    start: int
    stop: int
    amount: Amount
    measure: Measure

    def fit_rows(self, rows: int) -> int:
        """Return the end of at most ``rows`` rows."""
        if rows >= self.amount.rows:
            return self.stop
        if rows <= 0:
            return self.start
        if self.amount.rows == self.stop - self.start:
            return self.start + rows
        return self._fit(lambda low, high: self.measure(low, high).rows, self.stop, rows)

    def fit_bytes(self, nbytes: int, stop: int) -> int:
        """Return an end up to ``stop`` of at most ``nbytes`` bytes, or of one message."""
        if nbytes >= self.amount.nbytes:
            return stop
        return self._fit(lambda low, high: self.measure(low, high).nbytes, stop, nbytes)

    def _fit(self, measure: Callable[[int, int], int], stop: int, limit: int) -> int:
        """As ``fitting_stop``. Where offsets have no messages to be read, it looks further."""
        found = self.start
        for _ in range(_SEARCHES):
            found = fitting_stop(measure, found, stop, limit)
            if found >= stop or self.measure(self.start, found).rows:
                break
        return found


def admit(waiting: Sequence[WaitingMessages], rows: int | None, nbytes: int | None) -> list[int]:
    """Return where a batch with these limits ends in each of the stretches."""
    stops = [one.stop for one in waiting]
    if rows is not None:
        shares = divide_limit(rows, {n: one.amount.rows for n, one in enumerate(waiting)})
        stops = [one.fit_rows(shares[n]) for n, one in enumerate(waiting)]
    total = sum(one.amount.nbytes for one in waiting)
    if nbytes is not None and total > nbytes:
        stops = [
            min(stop, one.fit_bytes(nbytes * one.amount.nbytes // total, stop))
            for one, stop in zip(waiting, stops, strict=True)
        ]
    return stops


class Delay:
    """Holds batches back until enough messages wait, for at most ``seconds``.

    The first batch is not held back, as with Kafka's source.
    """

    def __init__(
        self, rows: int | None, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rows = rows
        self._seconds = seconds
        self._clock = clock
        self._last: float | None = None

    def holds(self, rows: int) -> bool:
        """Return whether a batch of ``rows`` rows has to wait; if not, it begins now."""
        now = self._clock()
        recent = self._last is not None and now - self._last < self._seconds
        if self._rows is not None and rows < self._rows and recent:
            return True
        self._last = now
        return False
