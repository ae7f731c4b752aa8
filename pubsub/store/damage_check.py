"""Verification after a crash: the tail of the history before the start, the rest gradually."""

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
    from pubsub.store.threads import ReaderPool

log = Logger()
# Blocks that are checked before the broker starts: more than any crash has interrupted.
TAIL = 64
# Blocks of a step, and the seconds between two steps, so that readers are not delayed.
_STEP = 64
_PAUSE = 0.05


def check_tail(connection: sqlite3.Connection) -> int:
    """Check the newest blocks and log the damaged ones; return the offset where they begin."""
    start, stop = tail_of(connection, TAIL)
    damage, _ = check_blocks(connection, start, stop, TAIL)
    _log_damage(damage)
    return start


class DamageCheck:
    """Checks all blocks before the offset ``stop``, in steps."""

    def __init__(self, readers: ReaderPool, reactor: Any, stop: int) -> None:
        self._readers = readers
        self._reactor = reactor
        self._stop = stop
        self._stopped = False

    def start(self) -> None:
        """Start, if there are blocks to check."""
        if not self._stop:
            return
        ensureDeferred(self._run()).addErrback(
            lambda failure: log.error(
                "history: the check failed: {reason}", reason=failure.getErrorMessage()
            )
        )

    def stop(self) -> None:
        """Start no more steps."""
        self._stopped = True

    async def _run(self) -> None:
        at = found = 0
        while at < self._stop and not self._stopped:
            step = partial(check_blocks, start=at, stop=self._stop, limit=_STEP)
            damage, at = await self._readers.run(step)
            _log_damage(damage)
            found += len(damage)
            await deferLater(self._reactor, _PAUSE)
        if not self._stopped:
            log.info("history: the check is complete; {count} blocks are damaged", count=found)


def _log_damage(damage: list[Damaged]) -> None:
    for one in damage:
        log.error("history: damaged: {damage}", damage=one)
