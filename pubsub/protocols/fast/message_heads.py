"""fast's messages as the kernel scans and encodes them: PUBLISH in, MESSAGE out (fast §3)."""

from __future__ import annotations

from typing import NamedTuple

from pubsub.kernel import Head, LengthField
from pubsub.protocols.fast.codec import PUBLISH, PUBLISH_OVERHEAD

_MESSAGE = 0x04


class Source(NamedTuple):
    """The token and the topic that PUBLISH packets were sent with."""

    token: bytes
    topic_id: int


def learn_publish(data: bytes, at: int, max_payload: int) -> tuple[Head, Source] | None:
    """Return the head and the source of the PUBLISH at ``at``; None for any other packet."""
    if len(data) - at < PUBLISH_OVERHEAD or data[at] != PUBLISH:
        return None
    width = PUBLISH_OVERHEAD + data[at + 1]
    before = data[at : at + width - 4]
    if len(data) - at < width:
        return None
    head = Head(before + bytes(4), (LengthField(width - 4, 4, big=True),), max_payload)
    return head, Source(before[2:-4], int.from_bytes(before[-4:], "big"))


def message_head(topic_id: int, limit: int) -> Head:
    """Return the head of a MESSAGE of at most ``limit`` bytes."""
    data = bytes((_MESSAGE,)) + topic_id.to_bytes(4, "big") + bytes(4)
    return Head(data, (LengthField(5, 4, big=True),), limit)
