"""fast's messages as the kernel scans and encodes them: PUBLISH in, MESSAGE out (fast §3)."""

from __future__ import annotations

from pubsub.kernel import Head, LengthField
from pubsub.protocols.fast.codec import PUBLISH, PUBLISH_OVERHEAD

_MESSAGE = 0x04


class Source(bytes):
    """The token and the topic that PUBLISH packets were sent with, as they are in these.

    A tuple of both would be hashed again for each read that has such packets.
    """

    __slots__ = ()

    @classmethod
    def of(cls, token: bytes, topic_id: int) -> Source:
        """Return the source of packets with ``token`` for this topic."""
        return cls(token + topic_id.to_bytes(4))

    @property
    def token(self) -> bytes:
        """The token."""
        return self[:-4]

    @property
    def topic_id(self) -> int:
        """The id of the topic."""
        return int.from_bytes(self[-4:])


def learn_publish(data: bytes, at: int, max_payload: int) -> tuple[Head, Source] | None:
    """Return the head and the source of the PUBLISH at ``at``; None for any other packet."""
    if len(data) - at < PUBLISH_OVERHEAD or data[at] != PUBLISH:
        return None
    width = PUBLISH_OVERHEAD + data[at + 1]
    before = data[at : at + width - 4]
    if len(data) - at < width:
        return None
    head = Head(before + bytes(4), (LengthField(width - 4, 4, big=True),), max_payload)
    return head, Source(before[2:])


def message_head(topic_id: int, limit: int) -> Head:
    """Return the head of a MESSAGE of at most ``limit`` bytes."""
    data = bytes((_MESSAGE,)) + topic_id.to_bytes(4, "big") + bytes(4)
    return Head(data, (LengthField(5, 4, big=True),), limit)
