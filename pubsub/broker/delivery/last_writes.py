"""The last writes to a transport that was full, from which unsent messages are counted.

A subscriber that is disconnected has not taken the bytes that its transport and the kernel hold.
The messages in these bytes are not recorded, because that would cost time for each delivery. The
writes while a transport is full are few, and are recorded. For earlier writes, the oldest recorded
one is taken as the measure.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.topic_space.topics import DeliverySource, Topic

# Remembered writes. A page of the history has a few, and a slow subscriber is sent one at a time.
_WRITES = 64


class LastWrites:
    """The last messages written: bytes, how many messages, and their topics."""

    __slots__ = ("_writes",)

    def __init__(self) -> None:
        self._writes: deque[tuple[int, int, DeliverySource]] = deque(maxlen=_WRITES)

    def add(self, nbytes: int, count: int, source: DeliverySource) -> None:
        """Remember a write of ``count`` messages of ``source``."""
        self._writes.append((nbytes, count, source))

    def messages_in(self, nbytes: int) -> dict[Topic, int]:
        """Return how many messages of each topic are in the last ``nbytes`` bytes written.

        A message of which only the beginning was taken counts. Exact if the messages of each write,
        and those before the remembered writes, are equally long; else an estimate.
        """
        found: dict[Topic, int] = {}
        writes = list(self._writes)
        while writes and nbytes > 0:
            size, count, source = writes.pop()
            share = min(nbytes, size) if writes else nbytes
            nbytes -= share
            for topic, number in source.counts(count):
                found[topic] = found.get(topic, 0) - (-number * share // size)
        return found
