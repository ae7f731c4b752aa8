"""Limits of rates, by token buckets; ``Publisher`` and the HTTP API apply them to messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pubsub.broker.routing.batch import Headers, message_sizes, messages_nbytes
from pubsub.kernel import Columns, Senders


class TokenBucket:
    """``rate`` tokens a second, accumulated for at most one second (but at least one token).

    The last token may be overdrawn, so that a message larger than the whole bucket passes
    eventually.
    """

    __slots__ = ("_clock", "_filled", "_tokens", "burst", "rate")

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self.rate = rate
        self.burst = max(rate, 1.0)
        self._tokens = self.burst
        self._clock = clock
        self._filled = clock()

    def available(self) -> float:
        """Return the number of tokens now; nothing may be taken if it is zero or less."""
        now = self._clock()
        # A clock that is set back must not remove tokens.
        gained = max(now - self._filled, 0.0) * self.rate
        self._filled = now
        self._tokens = min(self._tokens + gained, self.burst)
        return self._tokens

    def take(self, amount: float) -> None:
        """Take ``amount`` tokens; the balance may become negative."""
        self._tokens -= amount

    def put_back(self, amount: float) -> None:
        """Return ``amount`` tokens that were taken."""
        self._tokens += amount


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages and their bytes a second (see ``messages_nbytes``); zero means no limit."""

    messages: float = 0
    bytes: float = 0

    def limiter(self, clock: Callable[[], float]) -> RateLimiter | None:
        """Return a limiter with full buckets, or None if there is no limit."""
        if not self.messages and not self.bytes:
            return None
        return RateLimiter(self, clock)


class RateLimiter:
    """Admits messages that both of its buckets allow."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self._messages = TokenBucket(rate.messages, clock) if rate.messages else None
        self._bytes = TokenBucket(rate.bytes, clock) if rate.bytes else None

    def admissible(
        self,
        columns: Columns,
        sender: bytes | Senders = b"",
        headers: Sequence[Headers] | None = None,
    ) -> int:
        """Return how many messages, from the first on, may pass now; takes nothing."""
        return self._admitted(columns, sender, headers, TokenBucket.available)

    def admissible_at_best(
        self, columns: Columns, sender: bytes = b"", headers: Sequence[Headers] | None = None
    ) -> int:
        """Return how many messages, from the first on, may pass at once when the buckets are
        full."""
        return self._admitted(columns, sender, headers, lambda bucket: bucket.burst)

    def _admitted(
        self,
        columns: Columns,
        sender: bytes | Senders,
        headers: Sequence[Headers] | None,
        tokens: Callable[[TokenBucket], float],
    ) -> int:
        count = columns.count
        if self._messages is not None:
            count = min(count, max(int(tokens(self._messages)), 0))
        if self._bytes is not None and count:
            left = tokens(self._bytes)
            if left < messages_nbytes(columns, sender, headers):
                count = self._within(message_sizes(columns, sender, headers)[:count], left)
        return count

    def take(self, count: int, nbytes: int) -> None:
        """Charge ``count`` messages of ``nbytes`` bytes in total."""
        if self._messages is not None:
            self._messages.take(count)
        if self._bytes is not None:
            self._bytes.take(nbytes)

    @staticmethod
    def _within(sizes: Sequence[int], left: float) -> int:
        for index, size in enumerate(sizes):
            if left <= 0:
                return index
            left -= size
        return len(sizes)
