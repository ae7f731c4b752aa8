"""What happened, counted; the first of every kind, and every tenfold of it, goes to the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import ClassVar, TypeVar

from twisted.logger import Logger

# Distinct (client, topic, reason) kept apart; what comes after is counted under OTHERS.
_KINDS = 10_000
OTHERS = "*"
_Key = TypeVar("_Key", bound=Hashable)


class Counters:
    """Totals since the start of the broker.

    ``published`` and ``published_bytes`` count accepted messages, ``delivered`` messages handed
    to the outbox of a subscriber, or of the broker that hosts their topic, and not dropped from
    it since. ``drops`` counts by client, topic and reason, ``refusals`` by listener and reason:
    requests answered with an error, and connections turned away.
    """

    log: ClassVar[Logger] = Logger()

    def __init__(self) -> None:
        self.published = 0
        self.published_bytes = 0
        self.delivered = 0
        self.connections = 0
        self.drops: Counter[tuple[str, str, str]] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.watcher: Callable[[str, str, str, int], None] | None = None
        """Called with each drop."""

    @property
    def dropped(self) -> int:
        """Messages dropped for some subscriber, for whatever reason."""
        return self.drops.total()

    @property
    def refused(self) -> int:
        """Requests and connections refused."""
        return self.refusals.total()

    def drop(self, client: str, topic: str, reason: str, count: int) -> None:
        """``count`` messages on ``topic`` did not reach ``client``."""
        if self.watcher is not None:
            self.watcher(client, topic, reason, count)
        key = (client, topic, reason)
        if key not in self.drops and len(self.drops) >= _KINDS:
            key = (OTHERS, OTHERS, reason)
        if _worth_saying(self.drops, key, count):
            self.log.warn(
                "dropped: {count} for client {client!r} on topic {topic!r}: {reason}",
                count=self.drops[key],
                client=key[0],
                topic=key[1],
                reason=reason,
            )

    def refuse(self, listener: str, reason: str, client: str, count: int = 1) -> None:
        """``count`` requests of ``client`` were answered with an error."""
        key = (listener, reason)
        if _worth_saying(self.refusals, key, count):
            self.log.warn(
                "refused: {count} on {listener}: {reason}, last by {client!r}",
                count=self.refusals[key],
                listener=listener,
                reason=reason,
                client=client,
            )


def _worth_saying(totals: Counter[_Key], key: _Key, count: int) -> bool:
    """Add ``count``; did that make the total reach another power of ten?"""
    before = totals[key]
    totals[key] = now = before + count
    return int(10 ** (len(str(now)) - 1)) > before
