"""Housekeeping of the durable history: once a second, and in steps while there is more to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IDelayedCall

from pubsub.store.threads import Worker, complain
from pubsub.store.writer import Writer

# Seconds between two rounds, and between two steps of one, so that commits come between.
TIDY = 1.0
_STEP = 0.02


class Tidying:
    """What ``writer`` does for it in ``thread``.

    ``ready`` says whether it can be done now; ``done`` is told the first offset there is.
    """

    def __init__(
        self,
        reactor: Any,
        writer: Writer,
        thread: Worker,
        ready: Callable[[], bool],
        done: Callable[[int], None],
    ) -> None:
        self._reactor = reactor
        self._writer = writer
        self._thread = thread
        self._ready = ready
        self._done = done
        self._stopped = False
        self._next: IDelayedCall | None = None
        self._in(TIDY)

    def _in(self, seconds: float) -> None:
        if not self._stopped:
            self._next = self._reactor.callLater(seconds, self._begin)

    def _begin(self) -> None:
        self._next = None
        if self._ready():
            ensureDeferred(self._step()).addErrback(complain)
        else:
            self._in(TIDY)

    async def _step(self) -> None:
        pause = 10 * TIDY
        try:
            first, more = await self._thread.run(self._writer.tidy)
            self._done(first)
            pause = _STEP if more else TIDY
        finally:
            self._in(pause)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
            self._next = None
