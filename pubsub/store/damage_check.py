"""After a crash: is everything there as it was written? The tail at once, the rest by and by."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pubsub.store.block import Damaged
from pubsub.store.block_reader import check_blocks, tail_of

if TYPE_CHECKING:
    from pubsub.store.threads import Readers

log = Logger()
# Blocks that are looked at before the broker starts: more than were under way at any crash.
TAIL = 64
# Blocks of a step, and the seconds between two: readers are to notice nothing.
_STEP = 64
_PAUSE = 0.05


def check_tail(connection: sqlite3.Connection) -> int:
    """Check the newest blocks and report what is damaged; returns where they begin."""
    start, stop = tail_of(connection, TAIL)
    damage, _ = check_blocks(connection, start, stop, TAIL)
    _report(damage)
    return start


class Checker:
    """Checks everything before ``stop`` without hurry."""

    def __init__(self, readers: Readers, reactor: Any, stop: int) -> None:
        self._readers = readers
        self._reactor = reactor
        self._stop = stop
        self._stopped = False

    def start(self) -> None:
        """Begin, if there is anything to check."""
        if not self._stop:
            return
        ensureDeferred(self._run()).addErrback(
            lambda failure: log.error(
                "history: it cannot be checked: {reason}", reason=failure.getErrorMessage()
            )
        )

    def stop(self) -> None:
        """Go no further."""
        self._stopped = True

    async def _run(self) -> None:
        at = found = 0
        while at < self._stop and not self._stopped:
            step = partial(check_blocks, start=at, stop=self._stop, limit=_STEP)
            damage, at = await self._readers.run(step)
            _report(damage)
            found += len(damage)
            await deferLater(self._reactor, _PAUSE)
        if not self._stopped:
            log.info("history: all of it was checked, {count} blocks are damaged", count=found)


def _report(damage: list[Damaged]) -> None:
    for one in damage:
        log.error("history: damaged: {damage}", damage=one)
