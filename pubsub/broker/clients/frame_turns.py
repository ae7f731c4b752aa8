"""The turns of clients whose frames are handled one by one.

A read can have tens of thousands of short requests, or of frames that are refused, and each takes
some 10 to 50 µs. So a tick handles ``FRAMES`` of them, of all clients together; a client that has
more goes on in slices, and is not read from meanwhile. Messages that the kernel scans do not count,
unless those of each topic have to be published on their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.slices import Slices, Work
    from pubsub.kernel import Columns

FRAMES = 100
"""Frames that are handled one by one in a tick."""
RUNS = 4
"""Runs of messages of one address that count as a frame."""
# Messages that are split into runs together.
_PIECE = 1024
TURN_BYTES = 4096
"""Bytes of a read that are scanned in a turn."""
_TOGETHER, _STEP = 20, 4
"""Frames of the rest that are handled together if nobody else has any, and those of a step.

Messages between frames that are not known yet are published together: with fewer, much of the work
would be for the batch. With several clients, each handles fewer, as all begin in the same tick.
"""


class FrameTurns:
    """Counts frames; ``slices`` do what is left of a read, ``at_tick_end`` is as there."""

    def __init__(self, slices: Slices, at_tick_end: Callable[[Callable[[], None]], object]) -> None:
        self.slices = slices
        self._at_tick_end = at_tick_end
        self._left = FRAMES
        self._begun = False

    @property
    def are_over(self) -> bool:
        """Whether others are to be served before the next frame."""
        return self._left <= 0

    def count(self, frames: int = 1) -> bool:
        """Count frames; return whether others are to be served before the next one."""
        if not self._begun:
            self._begun = True
            self._at_tick_end(self._begin_tick)
        self._left -= frames
        return self.are_over

    def run_later(self, parse: Callable[[], object], then: Callable[[], None]) -> None:
        """Call ``parse``, which counts frames, until it handles few, then ``then``."""
        self.slices.run_later(self._steps(parse), then)

    def _steps(self, parse: Callable[[], object]) -> Work:
        while True:
            # The work that this is a step of is not counted among the others.
            steps = max(_TOGETHER // _STEP // (len(self.slices) + 1), 1)
            left, self._left = self._left, steps * _STEP
            try:
                parse()
                over = self.are_over
            finally:
                self._left = left
            if not over:
                return
            for _ in range(steps):
                yield

    def _begin_tick(self) -> None:
        self._left = FRAMES
        self._begun = False


def publish_runs(
    columns: Columns, publish: Callable[[Columns], object], turn_over: Callable[[], bool]
) -> int:
    """Call ``publish`` for consecutive messages of one address each, in their order.

    Stops when ``turn_over`` says that others are to be served; returns how many messages were
    published.
    """
    done = 0
    while done < columns.count:
        for number, (_index, run) in enumerate(columns.slice(done, done + _PIECE).runs(), 1):
            publish(run)
            done += run.count
            if number % RUNS == 0 and turn_over():
                return done
    return done
