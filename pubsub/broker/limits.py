"""Bounds: token buckets for rates, quotas of connections, the memory of the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pubsub.errors import LimitReached, MemoryExhausted
from pubsub.interfaces import Holder, Publishing

# What an accepted connection costs while it is idle, an estimate for the memory budget.
CONNECTION_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Bounds of the whole process; ``max_memory`` bytes are for all but the history."""

    max_memory: int = 1024**3
    memory_seconds: float = 30.0
    max_topics: int = 100_000
    max_sessions: int = 100_000
    resume_window: float = 60.0
    stop_seconds: float = 10.0


class TokenBucket:
    """``rate`` tokens a second, saved up for one second at the most (never below one token).

    A taker may go into debt with its last token, so that a message larger than the whole
    bucket passes now and then rather than never.
    """

    __slots__ = ("_clock", "_filled", "_tokens", "burst", "rate")

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self.rate = rate
        self.burst = max(rate, 1.0)
        self._tokens = self.burst
        self._clock = clock
        self._filled = clock()

    def available(self) -> float:
        """Tokens there are now; zero or less means that nothing may be taken."""
        now = self._clock()
        # A clock set back must not take tokens away.
        gained = max(now - self._filled, 0.0) * self.rate
        self._filled = now
        self._tokens = min(self._tokens + gained, self.burst)
        return self._tokens

    def take(self, amount: float) -> None:
        """Take ``amount`` tokens, into debt if need be."""
        self._tokens -= amount


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages and payload bytes a second; zero is no limit."""

    messages: float = 0
    bytes: float = 0

    def limiter(self, clock: Callable[[], float]) -> RateLimiter | None:
        """A limiter that starts with full buckets, or None where there is no limit."""
        if not self.messages and not self.bytes:
            return None
        return RateLimiter(self, clock)


class RateLimiter:
    """Admits messages by both of its buckets."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self._messages = TokenBucket(rate.messages, clock) if rate.messages else None
        self._bytes = TokenBucket(rate.bytes, clock) if rate.bytes else None

    def admissible(self, payloads: Sequence[bytes], nbytes: int) -> int:
        """How many of ``payloads``, from the first on, may pass now; takes nothing."""
        count = len(payloads)
        if self._messages is not None:
            count = min(count, max(int(self._messages.available()), 0))
        if self._bytes is not None and count:
            left = self._bytes.available()
            if left < nbytes:
                count = self._within(payloads[:count], left)
        return count

    def take(self, count: int, nbytes: int) -> None:
        """Charge ``count`` messages of ``nbytes`` together."""
        if self._messages is not None:
            self._messages.take(count)
        if self._bytes is not None:
            self._bytes.take(nbytes)

    @staticmethod
    def _within(payloads: Sequence[bytes], left: float) -> int:
        for index, payload in enumerate(payloads):
            if left <= 0:
                return index
            left -= len(payload)
        return len(payloads)


class ConnectionQuota:
    """How many connections a listener takes, in total and from one address; zero is no limit."""

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._addresses: Counter[str] = Counter()
        self.open = 0

    def admit(self, address: str) -> None:
        """Count a connection in; raises LimitReached."""
        if self._total and self.open >= self._total:
            raise LimitReached("connections")
        if self._per_address and self._addresses[address] >= self._per_address:
            raise LimitReached("connections from this address")
        self.open += 1
        if self._per_address:
            self._addresses[address] += 1

    def leave(self, address: str) -> None:
        """Count an admitted connection out."""
        self.open -= 1
        if self._per_address:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]


class Gate:
    """Publishers wait here while it is shut."""

    def __init__(self) -> None:
        self.shut = False
        self._waiting: set[Publishing] = set()

    def wait(self, publisher: Publishing) -> None:
        """Hold ``publisher`` until the gate opens."""
        self._waiting.add(publisher)
        publisher.hold(self)

    def close(self) -> None:
        """Whoever asks from now on has to wait."""
        self.shut = True

    def open(self) -> None:
        """Those who wait go on."""
        self.shut = False
        waiting, self._waiting = self._waiting, set()
        for publisher in waiting:
            publisher.release(self)


class MemoryBudget:
    """The bytes the broker holds on its clients' behalf, bounded by ``limit`` (zero: no bound).

    At the bound nothing new is taken on (``reserve`` raises), publishers wait after their next
    batch, and the broker's sweep evicts the largest holder when waiting alone does not help.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.holders: set[Holder] = set()
        self._waiting: set[Publishing] = set()

    @property
    def full(self) -> bool:
        """Is the bound reached?"""
        return bool(self.limit) and self.used >= self.limit

    def reserve(self, nbytes: int) -> None:
        """Take ``nbytes`` for something new; raises MemoryExhausted at the bound."""
        if self.full:
            raise MemoryExhausted(f"{self.used} bytes are in use, the bound is {self.limit}")
        self.used += nbytes

    def add(self, nbytes: int) -> None:
        """Account for ``nbytes`` that were taken in already, whatever the bound."""
        self.used += nbytes

    def free(self, nbytes: int) -> None:
        """Give ``nbytes`` back; below the bound the waiting publishers go on."""
        self.used -= nbytes
        if self._waiting and not self.full:
            waiting, self._waiting = self._waiting, set()
            for publisher in waiting:
                publisher.release(self)

    def charge(self, holder: Holder, before: int, now: int, mark: int) -> None:
        """``holder`` has ``now`` bytes where it had ``before``; over ``mark`` it can be evicted."""
        if now > mark:
            self.holders.add(holder)
        else:
            self.holders.discard(holder)
        if now > before:
            self.add(now - before)
        else:
            self.free(before - now)

    def wait(self, publisher: Publishing) -> None:
        """Hold ``publisher`` until there is memory again."""
        self._waiting.add(publisher)
        publisher.hold(self)

    def largest(self) -> Holder | None:
        """Who holds most, if anybody holds much."""
        return max(self.holders, key=lambda holder: holder.held, default=None)
