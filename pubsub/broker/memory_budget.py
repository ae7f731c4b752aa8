"""The memory that clients make the broker hold: one account, with one bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from sys import maxsize
from typing import Any, Protocol

from pubsub.errors import MemoryExhausted
from pubsub.interfaces import Holdable

SUBSCRIBERS, INPUT, OUTPUT = "subscribers", "input", "output"
"""Accounts of ``MemoryBudget.charge``: messages that wait for subscribers, partial frames, and
other bytes in transports."""
SUBSCRIPTIONS = "subscriptions"
"""Account of ``MemoryBudget.count``: subscriptions to topics (see ``subscription_account.py``)."""


class MemoryHolder(Protocol):
    """An object that holds much memory and can be evicted."""

    @property
    def held(self) -> int:
        """Bytes held."""

    def evict(self, reason: str) -> None:
        """Release the memory; a connection that holds it is closed."""


class MemoryBudget:
    """Counts the bytes that the broker holds for its clients, up to ``limit`` (zero: no bound).

    At the bound the caches are emptied. If that does not help, ``reserve`` refuses new objects,
    publishers are held after their next batch, and housekeeping evicts the largest holder if that
    does not help in time either.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._aside = 0
        self.holders: set[MemoryHolder] = set()
        self.held = {SUBSCRIBERS: 0, INPUT: 0, OUTPUT: 0, SUBSCRIPTIONS: 0}
        """The bytes of holders and of subscriptions, by account."""
        self._caches: list[CacheAccount] = []
        self._waiting: set[Holdable] = set()

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply the setting ``max-memory``."""
        self.limit = settings["max-memory"]
        # Caches are emptied if this is the bound, and publishers released if it is not.
        self.add(0)
        self.free(0)

    @property
    def full(self) -> bool:
        """True if the bound is reached."""
        return bool(self.limit) and self.used >= self.limit

    def check(self) -> None:
        """Raise MemoryExhausted at the bound."""
        if self.full:
            raise MemoryExhausted(
                f"all {self.limit} bytes of max-memory are in use; try again later"
            )

    def reserve(self, nbytes: int) -> None:
        """Count ``nbytes`` for a new object; raises MemoryExhausted at the bound."""
        self.check()
        self.add(nbytes)

    def add(self, nbytes: int) -> None:
        """Count ``nbytes`` that are already in use, regardless of the bound."""
        used = self.used = self.used + nbytes
        if self.limit and used >= self.limit:
            for cache in self._caches:
                cache.clear()

    def count(self, account: str, nbytes: int) -> None:
        """Count ``nbytes`` more in ``account``, or fewer if negative, regardless of the bound."""
        self.held[account] += nbytes
        if nbytes > 0:
            self.add(nbytes)
        else:
            self.free(-nbytes)

    def cache(self, limit: int, forget: Callable[[], None]) -> CacheAccount:
        """Return the account of a new cache; see there."""
        account = CacheAccount(self, limit, forget)
        self._caches.append(account)
        return account

    @property
    def aside(self) -> int:
        """Bytes that were set aside."""
        return self._aside

    @property
    def cached(self) -> int:
        """Bytes of all caches."""
        return sum(cache.nbytes for cache in self._caches)

    def set_aside(self, nbytes: int) -> None:
        """Count ``nbytes`` that are never returned."""
        self._aside += nbytes
        self.add(nbytes)

    def part(self, number: int) -> int:
        """Return the bytes of a ``number``-th part of the bound."""
        return self.limit // number if self.limit else maxsize

    @property
    def work_limit(self) -> int:
        """The largest amount for the work on one request: half of the unreserved bytes."""
        return max(self.limit - self._aside, 0) // 2 if self.limit else maxsize

    @contextmanager
    def work(self, nbytes: int) -> Iterator[None]:
        """Return a context in which ``nbytes`` are counted for the work on one request.

        Raises MemoryExhausted if that would leave less than a quarter of the memory to others.
        """
        if self.limit and self.used + nbytes > self.limit - self.work_limit // 2:
            raise MemoryExhausted(
                f"the request needs {nbytes} bytes of memory temporarily; {self.used} of "
                f"{self.limit} are in use"
            )
        with self.counted(nbytes):
            yield

    @contextmanager
    def counted(self, nbytes: int) -> Iterator[None]:
        """Return a context in which ``nbytes`` are counted, regardless of the bound."""
        self.add(nbytes)
        try:
            yield
        finally:
            self.free(nbytes)

    def free(self, nbytes: int) -> None:
        """Return ``nbytes``; below the bound the waiting publishers are released."""
        self.used -= nbytes
        if self._waiting and not self.full:
            waiting, self._waiting = self._waiting, set()
            for publisher in waiting:
                publisher.release(self)

    def charge(
        self, holder: MemoryHolder, before: int, now: int, mark: int, account: str = INPUT
    ) -> None:
        """Count a change of ``holder`` from ``before`` to ``now`` bytes, in ``account``.

        With more than ``mark`` bytes the holder can be evicted.
        """
        self.held[account] += now - before
        if now > mark:
            self.holders.add(holder)
        else:
            self.holders.discard(holder)
        if now > before:
            self.add(now - before)
        else:
            self.free(before - now)

    def wait(self, publisher: Holdable) -> None:
        """Hold ``publisher`` until memory is available."""
        self._waiting.add(publisher)
        publisher.hold(self)

    def leave(self, publisher: Holdable) -> None:
        """``publisher`` does not wait any more."""
        self._waiting.discard(publisher)

    def largest(self) -> MemoryHolder | None:
        """Return the holder of the most bytes, or None if there is no large holder."""
        return max(self.holders, key=lambda holder: holder.held, default=None)


class CacheAccount:
    """The bytes of one cache: data about clients that the broker keeps only for speed.

    ``forget`` empties the cache. It is called when more than ``limit`` bytes are charged, and when
    the budget has reached its bound.
    """

    __slots__ = ("_forget", "_limit", "_memory", "nbytes")

    def __init__(self, memory: MemoryBudget, limit: int, forget: Callable[[], None]) -> None:
        self.nbytes = 0
        self._memory = memory
        self._limit = limit
        self._forget = forget

    def charge(self, nbytes: int) -> None:
        """Count ``nbytes`` more, or fewer if negative; this can empty the cache."""
        self.nbytes += nbytes
        if nbytes < 0:
            self._memory.free(-nbytes)
        else:
            self._memory.add(nbytes)
        if self.nbytes > self._limit:
            self.clear()

    def clear(self) -> None:
        """Empty the cache."""
        if self.nbytes:
            nbytes, self.nbytes = self.nbytes, 0
            self._forget()
            self._memory.free(nbytes)
