"""The unit that travels through the broker: consecutive messages of one publisher to one topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pubsub.broker.message_run import MIXED

Headers = Mapping[str, bytes]
MAX_HEADERS = 2**16 - 1
"""Of one message: the history counts them so far."""


@dataclass(slots=True)
class Batch:
    """Messages that were published together.

    ``nbytes`` is the sum of the payloads' lengths, ``size`` the length they all have or
    ``MIXED``. ``timestamp`` is µs since the Unix epoch and holds for every message, as they
    were taken from one read. ``sequence`` numbers the first message within this run of the
    broker; ``offset`` is its place in the history, set by the store. ``headers`` is None where
    no message has any.
    """

    topic: str
    payloads: list[bytes]
    nbytes: int
    size: int
    timestamp: int
    sequence: int
    sender: bytes
    protocol: str
    headers: Sequence[Headers] | None = None
    offset: int = -1

    def part(self, start: int, stop: int) -> Batch:
        """The messages from index ``start`` up to ``stop`` as a batch of their own."""
        payloads = self.payloads[start:stop]
        return Batch(
            topic=self.topic,
            payloads=payloads,
            nbytes=sum(map(len, payloads)),
            size=self.size,
            timestamp=self.timestamp,
            sequence=self.sequence + start,
            sender=self.sender,
            protocol=self.protocol,
            headers=None if self.headers is None else self.headers[start:stop],
            offset=self.offset + start,
        )

    def within(self, limit: int) -> Batch | None:
        """The batch without the payloads over ``limit`` bytes; None if that leaves nothing.

        For encoding only: the offsets of what is left are no longer consecutive.
        """
        kept = [i for i, payload in enumerate(self.payloads) if len(payload) <= limit]
        if not kept:
            return None
        payloads = [self.payloads[i] for i in kept]
        headers = None if self.headers is None else [self.headers[i] for i in kept]
        return Batch(
            self.topic,
            payloads,
            sum(map(len, payloads)),
            MIXED,
            self.timestamp,
            self.sequence,
            self.sender,
            self.protocol,
            headers,
            self.offset,
        )


@dataclass(frozen=True, slots=True)
class Page:
    """What one read of the history gave, and the offset to go on reading from.

    ``damaged`` has the ranges of offsets (start, stop) that could not be read in between.
    """

    batches: list[Batch]
    next_offset: int
    damaged: tuple[tuple[int, int], ...] = ()


def message_number(run: int, sequence: int) -> int:
    """The id of a message, as the 128-bit number that a UUID is (see ``message_id``)."""
    return (run >> 12) << 80 | (0x8000 | (run & 0xFFF)) << 64 | 0b10 << 62 | sequence


def message_id(run: int, sequence: int) -> UUID:
    """The id of a message: a UUID of version 8 from the broker's run and its sequence.

    ``run`` is a random 60-bit number drawn at start, ``sequence`` counts up to 2**62, so an id
    is unique without anything being drawn or kept for a message.
    """
    return UUID(int=message_number(run, sequence))
