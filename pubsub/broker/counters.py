"""Counters of the broker. Of each kind the first, the tenth, the hundredth and so on are logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import ClassVar, TypeVar

from twisted.logger import Logger

# Distinct (client, topic, reason) that are counted; further ones are counted under OTHERS.
_MAX_KINDS = 10_000
OTHERS = "*"
_Key = TypeVar("_Key", bound=Hashable)


class Counters:
    """Totals since the start of the broker.

    ``published`` and ``published_bytes`` count accepted messages. ``delivered`` counts messages
    passed to the outbox of a subscriber, or of the broker that hosts their topic, and not dropped
    from it later. ``drops`` counts by client, topic and reason; ``refusals`` counts refused
    requests and connections by listener and reason. ``connections`` are those open now.
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
        """Messages dropped, for any subscriber and reason."""
        return self.drops.total()

    @property
    def refused(self) -> int:
        """Requests and connections refused."""
        return self.refusals.total()

    def drop(self, client: str, topic: str, reason: str, count: int) -> None:
        """Count ``count`` messages on ``topic`` that ``client`` does not get."""
        if self.watcher is not None:
            self.watcher(client, topic, reason, count)
        key = (client, topic, reason)
        if key not in self.drops and len(self.drops) >= _MAX_KINDS:
            key = (OTHERS, OTHERS, reason)
        if _add_and_test_log(self.drops, key, count):
            self.log.warn(
                "dropped: {count} for client {client!r} on topic {topic!r}: {reason}",
                count=self.drops[key],
                client=key[0],
                topic=key[1],
                reason=reason,
            )

    def refuse(self, listener: str, reason: str, client: str, count: int = 1) -> None:
        """Count ``count`` requests of ``client`` that were answered with an error."""
        key = (listener, reason)
        if _add_and_test_log(self.refusals, key, count):
            self.log.warn(
                "refused: {count} on {listener}: {reason}, last by {client!r}",
                count=self.refusals[key],
                listener=listener,
                reason=reason,
                client=client,
            )


def _add_and_test_log(totals: Counter[_Key], key: _Key, count: int) -> bool:
    """Add ``count``; return whether the total has reached another power of ten."""
    before = totals[key]
    totals[key] = now = before + count
    return int(10 ** (len(str(now)) - 1)) > before
