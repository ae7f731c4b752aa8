"""Bounds: of the whole process, token buckets for rates, quotas of connections, gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pubsub.broker.batch import Headers, message_sizes, messages_nbytes
from pubsub.errors import LimitReached
from pubsub.interfaces import Holdable, PublisherGate
from pubsub.kernel import Columns

# Estimated cost of an idle connection, for the memory budget.
CONNECTION_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Limits of the whole process, in bytes, seconds and items.

    ``max_memory`` bounds the bytes that the broker holds for clients and those of the history in
    memory (zero: no bound). ``history_memory`` is the history's share of it.
    """

    max_memory: int = 1024**3
    history_memory: int = 0
    memory_seconds: float = 30.0
    max_topics: int = 100_000
    max_sessions: int = 100_000
    resume_window: float = 60.0
    stop_seconds: float = 10.0
    topic_expiry: float = 0.0
    identity_expiry: float = 0.0

    @classmethod
    def of(cls, settings: Mapping[str, Any], history_memory: int = 0) -> BrokerLimits:
        """Return the limits that the broker's settings have."""
        return cls(
            max_memory=settings["max-memory"],
            history_memory=history_memory,
            memory_seconds=settings["memory-seconds"],
            max_topics=settings["max-topics"],
            max_sessions=settings["max-sessions"],
            resume_window=settings["resume-window"],
            stop_seconds=settings["stop-timeout"],
            topic_expiry=settings["topic-expiry"],
            identity_expiry=settings["identity-expiry"],
        )


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
        self, columns: Columns, sender: bytes = b"", headers: Sequence[Headers] | None = None
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
        sender: bytes,
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


class ConnectionQuota:
    """Limits a listener's connections, in total and from one address; zero means no limit.

    The addresses are always counted, so that a limit can be set while there are connections.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._addresses: Counter[str] = Counter()
        self.open = 0

    def reconfigure(self, total: int, per_address: int) -> None:
        """Admit by these limits from now on; connections beyond them stay."""
        self._total = total
        self._per_address = per_address

    def admit(self, address: str) -> None:
        """Count a new connection; raises LimitReached."""
        if self._total and self.open >= self._total:
            raise LimitReached("connections")
        if self._per_address and self._addresses[address] >= self._per_address:
            raise LimitReached("connections from this address")
        self.open += 1
        self._addresses[address] += 1

    def leave(self, address: str) -> None:
        """Remove an admitted connection from the count."""
        self.open -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


class Gate:
    """Holds publishers while it is shut."""

    def __init__(self) -> None:
        self.shut = False
        self._waiting: set[Holdable] = set()

    def wait(self, publisher: Holdable) -> None:
        """Hold ``publisher`` until the gate opens."""
        self._waiting.add(publisher)
        publisher.hold(self)

    def close(self) -> None:
        """Hold publishers from now on."""
        self.shut = True

    def open(self) -> None:
        """Release the publishers that wait."""
        self.shut = False
        waiting, self._waiting = self._waiting, set()
        for publisher in waiting:
            publisher.release(self)


class Gates:
    """Several gates that are passed one after the other."""

    def __init__(self, gates: Sequence[PublisherGate]) -> None:
        self._gates = gates

    @property
    def shut(self) -> bool:
        """Whether one of them is shut."""
        return any(gate.shut for gate in self._gates)

    def wait(self, publisher: Holdable) -> None:
        """Hold ``publisher`` until those that are shut have opened."""
        for gate in self._gates:
            if gate.shut:
                gate.wait(publisher)
