"""Counters of the broker. Of each kind the first, the tenth, the hundredth and so on are logged."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, MutableMapping
from typing import ClassVar, TypeVar

from twisted.logger import Logger

# Drops are counted for each of the (client, topic, reason) that had the last ones, else for each
# (topic, reason), and of further topics for each reason.
_MAX_KINDS = 10_000
OTHERS = "*"
_Key = TypeVar("_Key", bound=Hashable)


class Counters:
    """Totals since the start of the broker.

    ``published`` and ``published_bytes`` count accepted messages. ``delivered`` counts messages
    passed to the connection of a subscriber, or of the broker that hosts their topic, and not
    dropped later, ``dropped`` the others. What a connection that was aborted or lost had not taken
    counts as dropped (see ``LastWrites``). ``refusals`` counts refused requests and connections by
    listener and reason. ``connections`` are those open now.
    """

    log: ClassVar[Logger] = Logger()

    def __init__(self) -> None:
        self.published = 0
        self.published_bytes = 0
        self.delivered = 0
        self.connections = 0
        self.dropped = 0
        # The last drop is at the end. Not a Counter, whose first item would be slow to find.
        self._recent_drops: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._other_drops: Counter[tuple[str, str]] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.watcher: Callable[[str, str, str, int], None] | None = None
        """Called with each drop."""

    @property
    def drops(self) -> Counter[tuple[str, str, str]]:
        """Messages dropped, by client (OTHERS for those of long ago), topic and reason."""
        found = Counter(self._recent_drops)
        found.update({(OTHERS, *key): count for key, count in self._other_drops.items()})
        return found

    @property
    def refused(self) -> int:
        """Requests and connections refused."""
        return self.refusals.total()

    def drop(self, client: str, topic: str, reason: str, count: int) -> None:
        """Count ``count`` messages on ``topic`` that ``client`` does not get."""
        if self.watcher is not None:
            self.watcher(client, topic, reason, count)
        self.dropped += count
        key, recent = (client, topic, reason), self._recent_drops
        if key not in recent and len(recent) >= _MAX_KINDS:
            # Not logged for the new client: there may be any number of them.
            self._forget(*recent.popitem(last=False))
            recent[key] = count
            return
        if _add_and_test_log(recent, key, count):
            self._log_drops(*key, recent[key])
        recent.move_to_end(key)

    def _forget(self, key: tuple[str, str, str], count: int) -> None:
        """Count drops of the client that has had none for the longest with those of others."""
        _client, topic, reason = key
        if (topic, reason) not in self._other_drops and len(self._other_drops) >= _MAX_KINDS:
            topic = OTHERS
        if _add_and_test_log(self._other_drops, (topic, reason), count):
            self._log_drops(OTHERS, topic, reason, self._other_drops[topic, reason])

    def _log_drops(self, client: str, topic: str, reason: str, count: int) -> None:
        self.log.warn(
            "dropped: {count} for client {client!r} on topic {topic!r}: {reason}",
            count=count,
            client=client,
            topic=topic,
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


def _add_and_test_log(totals: MutableMapping[_Key, int], key: _Key, count: int) -> bool:
    """Add ``count``; return whether the total has reached another power of ten."""
    before = totals.get(key, 0)
    totals[key] = now = before + count
    return int(10 ** (len(str(now)) - 1)) > before
