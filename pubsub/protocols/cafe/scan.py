"""cafe's path of a message: decoding runs of PUBLISH and encoding runs of MESSAGE.

There is no step for each message. The eight bytes before the message in PUBLISH (header and
channel) are looked up as a whole; runs of equal frames are handled by ``wire/frame_runs.py``.
Nothing here knows Twisted or the broker.
"""

from __future__ import annotations

from struct import Struct

from pubsub.broker.message_run import MIXED, MessageRun
from pubsub.protocols.cafe.codec import HEADER, MAGIC, MAX_MESSAGE
from pubsub.wire.frame_runs import cut_run, join_run

HEAD = 8
"""Bytes before the message in PUBLISH: the header and the channel."""
_PUBLISH, _MESSAGE = 0x10, 0x13
_MESSAGE_HEAD = Struct("<HBIBQ")
# Heads that are cached; the cache is cleared when it is full.
_CACHED_HEADS = 4096

_lengths: dict[bytes, int] = {}


def _learn(head: bytes) -> int:
    """Return the length of the PUBLISH frame that begins with ``head``; 0 for other frames."""
    if len(head) < HEAD:
        return 0
    magic, opcode, length = HEADER.unpack_from(head)
    if magic != MAGIC or opcode != _PUBLISH or not 1 <= length <= MAX_MESSAGE + 1:
        return 0
    if len(_lengths) >= _CACHED_HEADS:
        _lengths.clear()
    _lengths[head] = HEADER.size + length
    return HEADER.size + int(length)


def publish_length(data: bytes) -> int:
    """Return the length of the deliverable PUBLISH at the start of ``data``; 0 if there is none."""
    head = data[:HEAD]
    return _lengths.get(head) or _learn(head)


def scan(data: bytes, at: int) -> tuple[int, list[tuple[int, MessageRun]]]:
    """Return where the PUBLISH frames from ``at`` on end, and their runs, each with its channel.

    They end at the end of ``data``, at an incomplete frame, or at one that is not a PUBLISH of a
    deliverable size, which ``codec.decode`` handles.
    """
    known = _lengths.get
    head = data[at : at + HEAD]
    stop = at + known(head, 0)
    if at < stop == len(data):
        # One message alone, as in most reads at a low rate.
        return stop, [(head[7], MessageRun([data[at + HEAD :]], stop - at - HEAD))]
    runs: list[tuple[int, MessageRun]] = []
    payloads: list[bytes] = []
    channel, size = -1, MIXED
    while length := known(head) or _learn(head):
        stop = at + length
        if stop > len(data):
            break
        if head[7] != channel:
            channel, payloads, size = head[7], [], length - HEAD
            runs.append((channel, MessageRun(payloads, size)))
        elif size != length - HEAD:
            runs[-1][1].size = size = MIXED
        following = data[stop : stop + HEAD]
        if following == head:
            found = cut_run(data, at, head, length - HEAD)
            payloads += found
            stop = at + length * len(found)
            following = data[stop : stop + HEAD]
        else:
            payloads.append(data[at + HEAD : stop])
        at, head = stop, following
    return at, runs


def encode_messages(channel: int, timestamp: int, payloads: list[bytes], size: int) -> bytes:
    """Return MESSAGE frames of ``payloads``, which have ``size`` bytes each or MIXED.

    ``timestamp`` is ms since the Unix epoch; no payload is longer than MAX_MESSAGE.
    """
    if len(payloads) == 1:
        payload = payloads[0]
        return _MESSAGE_HEAD.pack(MAGIC, _MESSAGE, len(payload) + 9, channel, timestamp) + payload

    def head(length: int) -> bytes:
        return _MESSAGE_HEAD.pack(MAGIC, _MESSAGE, length + 9, channel, timestamp)

    return join_run(head, payloads, size)


def split_frames(data: bytes, limit: int) -> list[bytes]:
    """Split whole frames into pieces of at most ``limit`` bytes, or of one longer frame."""
    pieces: list[bytes] = []
    start = at = 0
    while at < len(data):
        stop = at + HEADER.size + int(HEADER.unpack_from(data, at)[2])
        if stop - start > limit and at > start:
            pieces.append(data[start:at])
            start = at
        at = stop
    if at > start:
        pieces.append(data[start:at])
    return pieces
