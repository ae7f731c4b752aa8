"""The interface of a broker for the catalogue of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

WIRES = ("cafe", "nsd", "rheos", "spot", "fast", "http")


class Peer(Protocol):
    """A connection to the broker."""

    def send(self, data: bytes) -> None:
        """Send ``data`` whole, while replies are read."""

    def wait(self) -> None:
        """Wait until something was received since the last ``take``."""

    def take(self) -> bytes:
        """Return the bytes received since the last call."""

    def lose(self) -> None:
        """Reset the connection."""


@dataclass(frozen=True)
class Held:
    """The longest tick of an action by the clock and by processor time, in milliseconds.

    Both are without the time that the garbage collector took, which is ``collector`` at most. For a
    site that counts work ``held`` is a count.
    """

    held: float
    processor: float = 0.0
    collector: float = 0.0


class Site(Protocol):
    """A broker that serves all of ``WIRES``."""

    def connect(self, wire: str) -> Peer:
        """Return a new connection."""

    def settle(self) -> None:
        """Wait until the broker has nothing to do."""

    def longest(self, action: Callable[[], object]) -> Held:
        """Return the longest tick from the start of ``action`` until the broker has settled."""


@dataclass(frozen=True)
class Scale:
    """How much is in place: ``topics``; ids and identities with ``each`` subscriptions; and
    connections that are subscribed to the prefix of all topics. ``subscribers`` have the same topic
    and others, and ``small_messages`` come together."""

    topics: int = 100_000
    each: int = 10_000
    rheos_ids: int = 40
    nsd_identities: int = 30
    spot_prefixes: int = 3
    commit_topics: int = 6_000
    commit_senders: int = 300_000
    exclusive_topics: int = 1_000
    subscribers: int = 1_000
    small_messages: int = 16_000
    rounds: int = 3

    @classmethod
    def of(cls, topics: int) -> Scale:
        """Return the scale with ``topics`` topics and about ten times as many subscriptions."""
        each = max(topics // 10, 200)
        return cls(
            topics,
            each,
            commit_topics=max(topics * 6 // 100, 100),
            commit_senders=max(topics * 3, 100),
        )

    @property
    def subscriptions(self) -> int:
        """The number of all subscriptions."""
        return (self.rheos_ids + self.nsd_identities) * self.each + self.spot_prefixes * self.topics


@dataclass(frozen=True)
class Result:
    """A request of a wire, and the rounds in which it was sent."""

    wire: str
    request: str
    rounds: list[Held]

    @property
    def median(self) -> Held:
        """The median of each figure."""
        return Held(
            median(held.held for held in self.rounds),
            median(held.processor for held in self.rounds),
            median(held.collector for held in self.rounds),
        )
