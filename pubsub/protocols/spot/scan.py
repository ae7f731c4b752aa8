"""spot's path of a message: runs of equal messages in and out, without a step a message.

What stands before a payload (delimiter, command and topic, or the topic alone) is the same for
every message to a topic: its stem. Where frames of one length follow one another they are cut by
a ``struct`` iterator, and stems are put before payloads by a join. A stem is the same bytes in
and out, so what comes in as a run leaves as it came. Nothing here knows Twisted or the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from struct import Struct

from pubsub.broker.batch import MIXED, Batch
from pubsub.protocols.spot.zmtp import LONG, MORE, frame_head

# The most a frame can hold (RFC 37).
_MAX_BODY = 2**63 - 1


def publish_stem(topic: bytes) -> bytes:
    """What stands before the data in PUBLISH with a delimiter (spot §3.1)."""
    return b"\x01\x00\x01\x01\x01" + frame_head(len(topic), MORE) + topic


def topic_stem(topic: bytes) -> bytes:
    """What stands before the data between PUB and SUB sockets (spot §4)."""
    return frame_head(len(topic), MORE) + topic


@dataclass(slots=True)
class Run:
    """Messages that follow one another: ``nbytes`` together, ``size`` each or MIXED."""

    payloads: list[bytes]
    nbytes: int
    size: int
    end: int

    def append(self, later: Run) -> None:
        """Go on with the messages of ``later``."""
        self.payloads += later.payloads
        self.nbytes += later.nbytes
        if self.size != later.size:
            self.size = MIXED


def stem_at(data: bytes, at: int) -> bytes:
    """The short frames with MORE that a message begins with: its stem, if it is a publication."""
    stop, end = at, len(data)
    while stop + 1 < end and data[stop] == MORE:
        stop += 2 + data[stop + 1]
    return data[at:stop]


def scan(data: bytes, at: int, stem: bytes, limit: int) -> Run:
    """The run of messages from ``at`` on that are ``stem`` and one more frame.

    It ends before a message that is different, not all there, or over ``limit`` bytes.
    """
    payloads: list[bytes] = []
    nbytes = size = 0
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
        if size != length:
            size = MIXED if payloads else length
        head = data[at:start]
        step = stop - at
        # Two looks ahead before the count, which costs a pass over the rest of the data.
        if data.startswith(head, stop) and data.startswith(head, stop + step):
            count = _repeats(data, at, step, head)
            stop = at + count * step
            cut = _cutter(len(head), length).iter_unpack(memoryview(data)[at:stop])
            payloads.extend(chain.from_iterable(cut))
            nbytes += count * length
        else:
            payloads.append(data[start:stop])
            nbytes += length
        at = stop
    return Run(payloads, nbytes, size, at)


def _repeats(data: bytes, at: int, step: int, head: bytes) -> int:
    """How many messages of ``step`` bytes that begin with ``head`` follow one another."""
    count = (len(data) - at) // step
    for index, byte in enumerate(head):
        column = data[at + index : at + count * step : step]
        wanted = bytes((byte,))
        if column.count(wanted) != count:
            count -= len(column.lstrip(wanted))
    return count


@lru_cache(maxsize=1024)
def _cutter(before: int, size: int) -> Struct:
    return Struct(f"{before}x{size}s")


class _Heads(dict[int, bytes]):
    """What stands before a payload of a given length, made when first asked for."""

    def __init__(self, stem: bytes) -> None:
        super().__init__()
        self._stem = stem

    def __missing__(self, length: int) -> bytes:
        head = self._stem + frame_head(length)
        self[length] = head
        return head


def encode_run(stem: bytes, payloads: list[bytes], size: int) -> bytes:
    """Messages of ``stem`` and one payload each, of ``size`` bytes or MIXED."""
    if size != MIXED:
        return (stem + frame_head(size)).join([b"", *payloads])
    parts: list[bytes] = [b""] * (2 * len(payloads))
    parts[0::2] = map(_Heads(stem).__getitem__, map(len, payloads))
    parts[1::2] = payloads
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class StemEncoding:
    """A batch as messages that begin with ``stem`` (see ``Encoding``)."""

    stem: bytes
    limit: int = _MAX_BODY

    def encode(self, batch: Batch) -> bytes:
        """See ``Encoding``."""
        return encode_run(self.stem, batch.payloads, batch.size)
