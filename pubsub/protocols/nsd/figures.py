"""nsd: the broker's figures, which are not in the history, for clients that poll (nsd §3.5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.figures.events import PROTOCOL
from pubsub.broker.routing.batch import Batch
from pubsub.broker.topic_space.durability import STATS
from pubsub.kernel import Columns
from pubsub.protocols.nsd.codec import messages

if TYPE_CHECKING:
    from pubsub.broker.figures.statistics import Statistics
    from pubsub.broker.listeners.listener import Listener

CHANNEL = STATS
"""The channel of the figures."""


class LatestFigures:
    """The figures of this second, made when the first client requests them.

    ``seconds`` is the reactor's clock.
    """

    def __init__(self, statistics: Statistics, seconds: Callable[[], float]) -> None:
        self._statistics = statistics
        self._seconds = seconds
        self._second = -1
        self._columns = Columns.of([])

    def newer_than(self, second: int) -> tuple[int, Columns] | None:
        """Return the figures and their second; None if the client has those of ``second``."""
        now = int(self._seconds())
        if now == second:
            return None
        if now != self._second:
            figures = json.dumps(self._statistics.snapshot(), separators=(",", ":"))
            self._columns = Columns.of([figures.encode()])
            self._second = now
        return now, self._columns


class UnseenFigures:
    """The figures for one connection, which gets those of each second once."""

    __slots__ = ("_latest", "_second")

    def __init__(self, latest: LatestFigures) -> None:
        self._latest = latest
        self._second = -1

    @classmethod
    def of(cls, listener: Listener) -> UnseenFigures:
        """Return those of the broker of ``listener``."""
        make = partial(LatestFigures, listener.statistics, listener.clock.seconds)
        return cls(listener.shared(LatestFigures, make))

    def take(self, after: int) -> bytes:
        """Return the figures as a message with ``after`` as its ``when``; empty if they were taken.

        A client that continues with this ``when`` misses no message.
        """
        found = self._latest.newer_than(self._second)
        if found is None:
            return b""
        self._second, columns = found
        batch = Batch((CHANNEL,), columns, 0, 0, b"", PROTOCOL, offset=after - 1)
        # Not the kernel's encoder: a client may send any number, and an offset has 63 bits.
        return b",".join(messages(batch))
