"""cafe's path of a message: runs of PUBLISH in, runs of MESSAGE out, without a step a message.

What PUBLISH puts before the message (header and channel) is eight bytes, looked up whole; where
frames of one length follow one another they are cut a block at a time. Nothing here knows Twisted
or the broker.
"""

from __future__ import annotations

from functools import partial
from struct import Struct

from pubsub.protocols.cafe.codec import HEADER, MAGIC, MAX_MESSAGE
from pubsub.wire.runs import MIXED, cut_run, join_run

PREFIX = 8
"""Bytes before the message in PUBLISH: the header and the channel."""
_PUBLISH, _MESSAGE = 0x10, 0x13
_MESSAGE_PREFIX = Struct("<HBIBQ")
# Lengths times channels that are remembered; then it starts anew.
_KNOWN = 4096

Run = tuple[int, list[bytes], int, int]
"""Channel, payloads, their bytes together, and the length they share or MIXED."""

_lengths: dict[bytes, int] = {}


def _learn(head: bytes) -> int:
    """The length of the PUBLISH frame that begins with ``head``; 0 if it is anything else."""
    magic, opcode, length = HEADER.unpack_from(head)
    if magic != MAGIC or opcode != _PUBLISH or not 1 <= length <= MAX_MESSAGE + 1:
        return 0
    if len(_lengths) >= _KNOWN:
        _lengths.clear()
    _lengths[head] = HEADER.size + length
    return HEADER.size + int(length)


def scan(data: bytes, at: int) -> tuple[int, list[Run]]:
    """The runs of PUBLISH from ``at`` on, and where they end.

    They end at the end of ``data``, at a frame that is not all there, or at one that is not a
    PUBLISH of a deliverable size: that is for ``codec.decode``.
    """
    runs: list[Run] = []
    end = len(data)
    channel = -1
    payloads: list[bytes] = []
    nbytes = 0
    size = MIXED
    while end - at >= PREFIX:
        head = data[at : at + PREFIX]
        length = _lengths.get(head) or _learn(head)
        stop = at + length
        if not length or stop > end:
            break
        if head[7] != channel:
            if payloads:
                runs.append((channel, payloads, nbytes, size))
            channel, payloads, nbytes = head[7], [], 0
            size = length - PREFIX
        elif size != length - PREFIX:
            size = MIXED
        if data.startswith(head, stop):
            row = cut_run(data, at, head, length - PREFIX)
            payloads += row
            nbytes += len(row) * (length - PREFIX)
            stop = at + len(row) * length
        else:
            payloads.append(data[at + PREFIX : stop])
            nbytes += length - PREFIX
        at = stop
    if payloads:
        runs.append((channel, payloads, nbytes, size))
    return at, runs


def _message_prefix(channel: int, timestamp: int, length: int) -> bytes:
    return _MESSAGE_PREFIX.pack(MAGIC, _MESSAGE, length + 9, channel, timestamp)


def encode_messages(channel: int, timestamp: int, payloads: list[bytes], size: int) -> bytes:
    """MESSAGE frames for ``payloads``, each of ``size`` bytes or MIXED.

    ``timestamp`` is ms since the Unix epoch; no payload is longer than MAX_MESSAGE.
    """
    return join_run(partial(_message_prefix, channel, timestamp), payloads, size)


def split_frames(data: bytes, limit: int) -> list[bytes]:
    """Cut whole frames into pieces of ``limit`` bytes at most, or of one longer frame."""
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
