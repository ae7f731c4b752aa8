"""cafe's messages as the kernel scans and encodes them: PUBLISH in, MESSAGE out (cafe §4)."""

from __future__ import annotations

from functools import lru_cache

from pubsub.kernel import Head, LengthField
from pubsub.protocols.cafe.codec import HEADER, MAGIC, MAX_MESSAGE

PUBLISH_HEAD = 8
"""Bytes before the payload in PUBLISH: the header and the channel."""
TIMESTAMP_AT, TIMESTAMP_SIZE = 8, 8
"""The position of the timestamp in MESSAGE."""
_PUBLISH, _MESSAGE = 0x10, 0x13


@lru_cache(maxsize=256)
def publish_head(channel: int) -> Head:
    """Return the head of a PUBLISH that can be delivered."""
    data = HEADER.pack(MAGIC, _PUBLISH, 0) + bytes((channel,))
    return Head(data, (LengthField(3, 4, add=1),), MAX_MESSAGE)


def learn_publish(data: bytes, at: int) -> tuple[Head, int] | None:
    """Return the head of the PUBLISH at ``at``, and its channel; None for any other frame."""
    head = data[at : at + PUBLISH_HEAD]
    if len(head) < PUBLISH_HEAD:
        return None
    magic, opcode, _length = HEADER.unpack_from(head)
    if magic != MAGIC or opcode != _PUBLISH:
        return None
    return publish_head(head[-1]), head[-1]


def message_head(channel: int, limit: int) -> Head:
    """Return the head of a MESSAGE of at most ``limit`` bytes; its timestamp is variable."""
    data = HEADER.pack(MAGIC, _MESSAGE, 0) + bytes((channel,)) + bytes(TIMESTAMP_SIZE)
    return Head(data, (LengthField(3, 4, add=9),), limit)
