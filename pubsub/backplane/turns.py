"""Turns: what is done for one name is done one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from twisted.internet.defer import Deferred, DeferredLock


class Turns:
    """The names that something is being done for. ``ended`` is called when all of it is done.

    ``bounded`` bounds the wait for a turn: it returns what it is given, with a deadline.
    """

    def __init__(
        self,
        ended: Callable[[str], object],
        bounded: Callable[[Deferred[DeferredLock]], Deferred[DeferredLock]],
    ) -> None:
        self._ended = ended
        self._bounded = bounded
        self._locks: dict[str, DeferredLock] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._locks

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Wait for the turn of ``name``."""
        lock = self._locks.setdefault(name, DeferredLock())
        await self._bounded(lock.acquire())
        try:
            yield
        finally:
            lock.release()
            if not lock.locked:
                del self._locks[name]
                self._ended(name)
