"""Locks by name: operations on one name are carried out one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from twisted.internet.defer import Deferred, DeferredLock


class NameLocks:
    """A lock for each name in use. ``ended`` is called when the last operation on a name is done.

    ``bounded`` bounds the wait for a lock: it returns its argument with a deadline.
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
        """Hold the lock of ``name``; wait until it is free."""
        lock = self._locks.setdefault(name, DeferredLock())
        await self._bounded(lock.acquire())
        try:
            yield
        finally:
            lock.release()
            # The next operation may have ended already.
            if not lock.locked and self._locks.get(name) is lock:
                del self._locks[name]
                self._ended(name)
