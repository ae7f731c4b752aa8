"""Counters of the broker. Of each kind the first, the tenth, the hundredth and so on are logged."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, MutableMapping
from typing import ClassVar, NamedTuple, TypeVar

from twisted.logger import Logger

from pubsub.broker.clients.connection_marks import log_fields
from pubsub.broker.figures.traffic import Traffic, TrafficByProtocol

# Drops are counted for each of the (client, topic, reason) that had the last ones, else for each
# (topic, reason), and of further topics for each reason.
_MAX_KINDS = 10_000
OTHERS = "*"
# Reasons of evictions, beyond which they are counted together.
_MAX_REASONS = 50
_Key = TypeVar("_Key", bound=Hashable)


class LastRefusal(NamedTuple):
    """The client of the last refusal for a reason, and its time in µs since the Unix epoch."""

    client: str
    timestamp: int


class Counters:
    """Totals since the start of the broker.

    ``traffic`` has the messages in and out by protocol. ``delivered`` counts messages passed to the
    connection of a subscriber, or of the broker that hosts their topic, and not dropped later,
    ``dropped`` the others. Messages that a connection had not taken when it was aborted or lost
    count as dropped (see ``LastWrites``). ``refusals`` counts refused requests and connections by
    listener and reason, and ``last_refusals`` has the last of each. ``connections`` are those open
    now, ``ended_connections`` those before. By reason, ``drop_reasons`` counts messages dropped and
    ``evictions`` clients disconnected to protect the others.
    """

    log: ClassVar[Logger] = Logger()

    def __init__(self) -> None:
        self.traffic = TrafficByProtocol()
        self.connections = self.ended_connections = 0
        self.dropped = 0
        # The last drop is at the end. Not a Counter, whose first item would be slow to find.
        self._recent_drops: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._other_drops: Counter[tuple[str, str]] = Counter()
        self.drop_reasons: Counter[str] = Counter()
        self.evictions: Counter[str] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.last_refusals: dict[tuple[str, str], LastRefusal] = {}
        self.watcher: Callable[[str, str, str, int], None] | None = None
        """Called with each drop."""

    @property
    def delivered(self) -> int:
        """Messages delivered. Several calls: not for each message."""
        return self.traffic.deliveries.messages

    @delivered.setter
    def delivered(self, number: int) -> None:
        self.traffic.deliveries.messages = number

    @property
    def published(self) -> int:
        """Messages accepted."""
        return sum(traffic.accepted.messages for traffic in self.traffic.values())

    @property
    def published_bytes(self) -> int:
        """Bytes of the payloads of the messages accepted."""
        return sum(traffic.accepted.nbytes for traffic in self.traffic.values())

    @property
    def drops(self) -> Counter[tuple[str, str, str]]:
        """Messages dropped, by client (OTHERS for clients of long ago), topic and reason."""
        found = Counter(self._recent_drops)
        found.update({(OTHERS, *key): count for key, count in self._other_drops.items()})
        return found

    @property
    def refused(self) -> int:
        """Requests and connections refused."""
        return self.refusals.total()

    def drop(
        self,
        client: str,
        topic: str,
        reason: str,
        count: int,
        connection: object = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Count ``count`` messages on ``topic`` that ``client`` does not get.

        The log line tells of its ``connection``, if it has one. ``traffic`` is that of the
        client's protocol; None for one that is not a client.
        """
        self.drop_reasons[reason] += count
        if traffic is not None:
            traffic.dropped += count
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
            self._log_drops(*key, recent[key], connection)
        recent.move_to_end(key)

    def _forget(self, key: tuple[str, str, str], count: int) -> None:
        """Count the drops of the client with the oldest last drop together with those of others."""
        _client, topic, reason = key
        if (topic, reason) not in self._other_drops and len(self._other_drops) >= _MAX_KINDS:
            topic = OTHERS
        if _add_and_test_log(self._other_drops, (topic, reason), count):
            self._log_drops(OTHERS, topic, reason, self._other_drops[topic, reason])

    def _log_drops(
        self, client: str, topic: str, reason: str, count: int, connection: object = None
    ) -> None:
        self.log.warn(
            "dropped: {count} for client {client!r} on topic {topic!r}: {reason}",
            count=count,
            client=client,
            topic=topic,
            reason=reason,
            connection=log_fields(connection),
        )

    def evict(self, reason: str) -> None:
        """Count a client that is disconnected to protect the others.

        The text after a colon in ``reason`` differs from one to the next.
        """
        kind = reason.partition(":")[0].replace(" ", "-")
        if kind not in self.evictions and len(self.evictions) >= _MAX_REASONS:
            kind = OTHERS
        self.evictions[kind] += 1

    def refuse(
        self,
        listener: str,
        reason: str,
        client: str,
        count: int = 1,
        connection: object = None,
        timestamp: int = 0,
    ) -> None:
        """Count ``count`` requests of ``client`` that were answered with an error.

        The log line tells of its ``connection``, if it has one. ``timestamp`` is the time in µs.
        """
        key = (listener, reason)
        self.last_refusals[key] = LastRefusal(client, timestamp)
        if _add_and_test_log(self.refusals, key, count):
            self.log.warn(
                "refused: {count} on {listener}: {reason}, last by {client!r}",
                count=self.refusals[key],
                listener=listener,
                reason=reason,
                client=client,
                connection=log_fields(connection),
                # These lines are few, and the next reason is not a repetition of the last one.
                unlimited=True,
            )


def _add_and_test_log(totals: MutableMapping[_Key, int], key: _Key, count: int) -> bool:
    """Add ``count``; return whether the total has reached another power of ten."""
    before = totals.get(key, 0)
    totals[key] = now = before + count
    return int(10 ** (len(str(now)) - 1)) > before
