"""spot's path of a message: decoding and encoding runs, without a step for each message.

The bytes before a payload (delimiter, command and topic, or the topic alone) are the same for all
messages to a topic, received or sent: the stem. Nothing here knows Twisted or the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.broker.message_run import MIXED, MessageRun
from pubsub.protocols.spot.zmtp import LONG, MORE, frame_head
from pubsub.wire.frame_runs import cut_run, join_run

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch

# The largest body of a frame (RFC 37).
_MAX_BODY = 2**63 - 1


def publish_stem(topic: bytes) -> bytes:
    """Return the bytes before the data in PUBLISH with a delimiter (spot §3.1)."""
    return b"\x01\x00\x01\x01\x01" + frame_head(len(topic), MORE) + topic


def topic_stem(topic: bytes) -> bytes:
    """Return the bytes before the data between PUB and SUB sockets (spot §4)."""
    return frame_head(len(topic), MORE) + topic


def stem_at(data: bytes, at: int) -> bytes:
    """Return the short frames with MORE at the start of a message: a publication's stem."""
    stop, end = at, len(data)
    while stop + 1 < end and data[stop] == MORE:
        stop += 2 + data[stop + 1]
    return data[at:stop]


def scan(data: bytes, at: int, stem: bytes, limit: int, run: MessageRun) -> int:
    """Add to ``run`` the messages from ``at`` on that are ``stem`` and one more frame.

    Returns where they end: before a message that is different, incomplete, or longer than ``limit``
    bytes.
    """
    payloads = run.payloads
    width, end = len(stem), len(data)
    while data.startswith(stem, at):
        flags = at + width
        start = flags + 2
        if start > end:
            break
        length = data[flags + 1]
        if data[flags]:
            start = flags + 9
            if data[flags] != LONG or start > end:
                break
            length = int.from_bytes(data[flags + 1 : start], "big")
        stop = start + length
        if length > limit or stop > end:
            break
        if run.size != length:
            run.size = MIXED if payloads else length
        head = data[at:start]
        step = stop - at
        # Two messages ahead are compared, as `cut_run` costs more than one message.
        if data.startswith(head, stop) and data.startswith(head, stop + step):
            found = cut_run(data, at, head, length)
            payloads += found
            at += len(found) * step
        else:
            payloads.append(data[start:stop])
            at = stop
    return at


def encode_run(stem: bytes, payloads: list[bytes], size: int) -> bytes:
    """Return messages of ``stem`` and one payload each, of ``size`` bytes or MIXED."""
    return join_run(lambda length: stem + frame_head(length), payloads, size)


@dataclass(frozen=True, slots=True)
class StemEncoding:
    """Encodes a batch as messages that begin with ``stem`` (see ``Encoding``)."""

    stem: bytes
    limit: int = _MAX_BODY

    def encode(self, batch: Batch) -> bytes:
        """See ``Encoding``."""
        return encode_run(self.stem, batch.payloads, batch.size)
