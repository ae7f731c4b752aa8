"""spot's path of a message: runs of equal messages in and out, without a step a message.

What stands before a payload (delimiter, command and topic, or the topic alone) is the same for
every message to a topic: its stem, the same bytes in and out. Nothing here knows Twisted or the
broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.broker.message_run import MIXED, MessageRun
from pubsub.protocols.spot.zmtp import LONG, MORE, frame_head
from pubsub.wire.frame_runs import cut_run, join_run

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch

# The most a frame can hold (RFC 37).
_MAX_BODY = 2**63 - 1


def publish_stem(topic: bytes) -> bytes:
    """What stands before the data in PUBLISH with a delimiter (spot §3.1)."""
    return b"\x01\x00\x01\x01\x01" + frame_head(len(topic), MORE) + topic


def topic_stem(topic: bytes) -> bytes:
    """What stands before the data between PUB and SUB sockets (spot §4)."""
    return frame_head(len(topic), MORE) + topic


def stem_at(data: bytes, at: int) -> bytes:
    """The short frames with MORE that a message begins with: its stem, if it is a publication."""
    stop, end = at, len(data)
    while stop + 1 < end and data[stop] == MORE:
        stop += 2 + data[stop + 1]
    return data[at:stop]


def scan(data: bytes, at: int, stem: bytes, limit: int, run: MessageRun) -> int:
    """Add to ``run`` the messages from ``at`` on that are ``stem`` and one more frame.

    Returns where they end: before a message that is different, not all there, or over ``limit``
    bytes.
    """
    payloads = run.payloads
    width, end = len(stem), len(data)
    while data.startswith(stem, at):
        mark = at + width
        start = mark + 2
        if start > end:
            break
        length = data[mark + 1]
        if data[mark]:
            start = mark + 9
            if data[mark] != LONG or start > end:
                break
            length = int.from_bytes(data[mark + 1 : start], "big")
        stop = start + length
        if length > limit or stop > end:
            break
        if run.size != length:
            run.size = MIXED if payloads else length
        head = data[at:start]
        step = stop - at
        # Two looks ahead, as a row that is none costs more than a message.
        if data.startswith(head, stop) and data.startswith(head, stop + step):
            row = cut_run(data, at, head, length)
            payloads += row
            at += len(row) * step
        else:
            payloads.append(data[start:stop])
            at = stop
    return at


def encode_run(stem: bytes, payloads: list[bytes], size: int) -> bytes:
    """Messages of ``stem`` and one payload each, of ``size`` bytes or MIXED."""
    return join_run(lambda length: stem + frame_head(length), payloads, size)


@dataclass(frozen=True, slots=True)
class StemEncoding:
    """A batch as messages that begin with ``stem`` (see ``Encoding``)."""

    stem: bytes
    limit: int = _MAX_BODY

    def encode(self, batch: Batch) -> bytes:
        """See ``Encoding``."""
        return encode_run(self.stem, batch.payloads, batch.size)
