"""Limits of the whole process, and of the connections of a listener."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pubsub.errors import LimitReached

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


UNKNOWN = ""
"""The address of a connection until the header of a proxy has named it."""


class ConnectionQuota:
    """Limits a listener's connections, in total and from one address; zero means no limit.

    The addresses are always counted, so that a limit can be set while there are connections.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._addresses: Counter[str] = Counter()
        self.open = 0
        self.spared = 0
        """Connections that are admitted at the bounds of memory and of open files as well."""

    @property
    def spares_next(self) -> bool:
        """Whether the next connection is one of these."""
        return self.open < self.spared

    def reconfigure(self, total: int, per_address: int) -> None:
        """Admit by these limits from now on; connections beyond them stay."""
        self._total = total
        self._per_address = per_address

    @property
    def full(self) -> bool:
        """Whether the total is reached."""
        return bool(self._total) and self.open >= self._total

    def check_total(self) -> None:
        """Raise LimitReached if there are more connections than the total."""
        if self._total and self.open > self._total:
            raise LimitReached("connections")

    def admit(self, address: str, spared: bool = False) -> None:
        """Count a new connection; raises LimitReached. ``spared`` admits it beyond the total."""
        if self.full and not spared:
            raise LimitReached("connections")
        if address != UNKNOWN:
            self._check(address)
        self.open += 1
        self._addresses[address] += 1

    def locate(self, address: str) -> None:
        """Count an admitted connection with the address UNKNOWN for ``address``.

        Raises LimitReached, and it stays where it is.
        """
        self._check(address)
        self._discard(UNKNOWN)
        self._addresses[address] += 1

    def _check(self, address: str) -> None:
        if self._per_address and self._addresses[address] >= self._per_address:
            raise LimitReached("connections from this address")

    def leave(self, address: str) -> None:
        """Remove an admitted connection from the count."""
        self.open -= 1
        self._discard(address)

    def _discard(self, address: str) -> None:
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
