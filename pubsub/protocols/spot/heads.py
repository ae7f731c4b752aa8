"""spot's messages as the kernel scans and encodes them: frames with MORE, then the data (spot §3).

The frames before the data (delimiter, command and topic, or the topic alone) are the same for every
message to a topic, and the same bytes in both directions. The data is a short or a long frame.
"""

from __future__ import annotations

from functools import lru_cache

from pubsub.kernel import Head, LengthField
from pubsub.protocols.spot.zmtp import LONG, MORE, frame_head

# The most a frame can hold (RFC 37), and a short one.
MAX_FRAME = 2**63 - 1
_MAX_SHORT = 255


def publish_prefix(topic: bytes) -> bytes:
    """Return the frames before the data in PUBLISH with a delimiter (spot §3.1)."""
    return b"\x01\x00\x01\x01\x01" + frame_head(len(topic), MORE) + topic


def topic_prefix(topic: bytes) -> bytes:
    """Return the frame before the data between PUB and SUB sockets (spot §4)."""
    return frame_head(len(topic), MORE) + topic


def prefix_at(data: bytes, at: int) -> bytes:
    """Return the short frames with MORE that a message begins with."""
    stop, end = at, len(data)
    while stop + 1 < end and data[stop] == MORE:
        stop += 2 + data[stop + 1]
    return data[at:stop]


def short_head(prefix: bytes, limit: int = _MAX_SHORT) -> Head:
    """Return the head of a message whose data is a short frame."""
    field = LengthField(len(prefix) + 1, 1)
    return Head(prefix + bytes(2), (field,), min(limit, _MAX_SHORT))


def long_head(prefix: bytes, limit: int, least: int = 0) -> Head:
    """Return the head of a message whose data is a long frame."""
    field = LengthField(len(prefix) + 1, 8, big=True)
    return Head(prefix + bytes((LONG,)) + bytes(8), (field,), limit, least)


@lru_cache(maxsize=4096)
def message_heads(prefix: bytes) -> tuple[Head, Head]:
    """Return the heads of a delivery: short frames where they are possible (RFC 37)."""
    return short_head(prefix), long_head(prefix, MAX_FRAME, _MAX_SHORT + 1)
