"""Batches: messages that one publisher sent to one topic, and pages of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pubsub.broker.message_run import MIXED

Headers = Mapping[str, bytes]
MAX_HEADERS = 2**16 - 1
"""Headers of one message: the largest number that the history's format can store."""


@dataclass(slots=True)
class Batch:
    """Messages that were published together.

    ``nbytes`` is the sum of the payloads' lengths; ``size`` is their common length or ``MIXED``.
    ``timestamp`` is in µs since the Unix epoch and applies to every message, as they come from one
    read. ``sequence`` is the number of the first message within this run of the broker;
    ``offset`` is its offset in the history, set by the store. ``headers`` is None if no message has
    any.
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
        """Return the messages from index ``start`` to before ``stop`` as a batch."""
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
        """Return the batch without payloads over ``limit`` bytes; None if none is left.

        For encoding only: the offsets of the remaining messages are not consecutive.
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
    """The result of one read of the history, and the offset from which to read next.

    ``damaged`` has the ranges of offsets (start, stop) that could not be read.
    """

    batches: list[Batch]
    next_offset: int
    damaged: tuple[tuple[int, int], ...] = ()


def message_number(run: int, sequence: int) -> int:
    """Return the id of a message as the 128-bit number of its UUID (see ``message_id``)."""
    return (run >> 12) << 80 | (0x8000 | (run & 0xFFF)) << 64 | 0b10 << 62 | sequence


def message_id(run: int, sequence: int) -> UUID:
    """Return the id of a message: a UUID of version 8 from the broker's run and its sequence.

    ``run`` is a random 60-bit number drawn at start, ``sequence`` is below 2**62. So ids are
    unique, and nothing is drawn or stored for each message.
    """
    return UUID(int=message_number(run, sequence))
