"""Housekeeping of the durable history: once a second, and in steps while there is more to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IDelayedCall

from pubsub.store.threads import Worker, log_failure
from pubsub.store.writer import Writer

TIDY = 1.0
"""Seconds between two rounds."""
# Seconds between two steps of a round, so that commits can run between them.
_STEP = 0.02


class Maintenance:
    """Has ``writer`` tidy the file in ``thread``.

    A round starts only if ``ready`` returns True. ``done`` is called after each step with the first
    offset of the history. ``now`` returns the time at which age is judged, in µs.
    """

    def __init__(
        self,
        reactor: Any,
        writer: Writer,
        thread: Worker,
        ready: Callable[[], bool],
        done: Callable[[int], None],
        now: Callable[[], int],
    ) -> None:
        self._reactor = reactor
        self._writer = writer
        self._thread = thread
        self._ready = ready
        self._done = done
        self._now = now
        self._stopped = False
        self._next: IDelayedCall | None = None
        self._schedule(TIDY)

    def _schedule(self, seconds: float) -> None:
        if not self._stopped:
            self._next = self._reactor.callLater(seconds, self._begin)

    def _begin(self) -> None:
        self._next = None
        if self._ready():
            ensureDeferred(self._step()).addErrback(log_failure)
        else:
            self._schedule(TIDY)

    async def _step(self) -> None:
        # The pause after a step that fails.
        pause = 10 * TIDY
        try:
            first, more = await self._thread.run(partial(self._writer.tidy, self._now()))
            self._done(first)
            pause = _STEP if more else TIDY
        finally:
            self._schedule(pause)

    def stop(self) -> None:
        """Start no more steps."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
            self._next = None
