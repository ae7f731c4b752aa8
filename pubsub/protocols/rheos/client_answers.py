"""The replies of a rheos broker to a client: acknowledgments and responses (rheos §3, §5.4)."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from pubsub.kernel import Head, HeadTable, LengthField
from pubsub.protocols.rheos.codec import (
    ACK_MAGIC,
    ACK_SIZE,
    CHECKSUM_SIZE,
    FAILED,
    MAX_PAYLOAD,
    NIL,
    RESPONSE_SIZE,
    Codec,
    Fault,
    RheosError,
)

_CODE_AT = ACK_SIZE - 1
UNCONFIRMED = 2
"""Stands for FAILED with the id of a message: it may be published nevertheless (rheos §3.2)."""
_MAX_NAME = 255
_NAME_LENGTH = 2
# Acknowledgments that are read by one call; more than a broker sends at once.
_MOST_ACKS = 65_536


class ResponseFields(NamedTuple):
    """The fields that the responses of one head share; ``topic`` is empty without an envelope."""

    sender_id: bytes
    topic: bytes


def scan_acks(data: bytes, at: int, checksum: bool) -> tuple[bytes, int]:
    """Return the codes of the acknowledgments that follow one another from ``at`` on.

    A code is SUCCESS, FAILED or UNCONFIRMED. The second value is the position after the last
    complete one. Raises RheosError for a code that does not exist and a checksum that is wrong.
    """
    size = ACK_SIZE + CHECKSUM_SIZE * checksum
    count = min((len(data) - at) // size, _MOST_ACKS)
    magics = data[at : at + count * size : size]
    count -= len(magics.lstrip(bytes((ACK_MAGIC,))))
    end = at + count * size
    codes = data[at + _CODE_AT : end : size]
    if codes.strip(bytes((0, FAILED))):
        raise RheosError(Fault.CORRUPTED_DATA)
    if checksum:
        _check_seals(data, at, end, size)
    if FAILED in codes:
        codes = _told_apart(codes, data, at, size)
    return codes, end


def _told_apart(codes: bytes, data: bytes, at: int, size: int) -> bytes:
    found = bytearray(codes)
    for place, code in enumerate(codes):
        start = at + place * size
        if code == FAILED and data[start + 1 : start + _CODE_AT] != NIL:
            found[place] = UNCONFIRMED
    return bytes(found)


def _check_seals(data: bytes, at: int, end: int, size: int) -> None:
    view = memoryview(data)
    for start in range(at, end, size):
        stop = start + ACK_SIZE
        if crc32(view[start:stop]) != int.from_bytes(view[stop : start + size], "little"):
            raise RheosError(Fault.CORRUPTED_DATA)


def learn_response(
    data: bytes, at: int, codec: Codec, envelope: bool
) -> tuple[Head, ResponseFields]:
    """Return the head of the response at ``at`` and its content.

    Raises LookupError if its head is incomplete, and RheosError if it is malformed.
    """
    start = at + RESPONSE_SIZE
    if len(data) < start:
        raise LookupError
    length = int.from_bytes(data[at + 1 : at + 5], "little")
    if length > MAX_PAYLOAD:
        raise RheosError(Fault.TRANSLATION_ERROR)
    before = data[at : at + 1] + bytes(4) + data[at + 5 : start]
    if not envelope:
        return Head(before, (LengthField(1, 4),), MAX_PAYLOAD), ResponseFields(before[5:], b"")
    name, data_length = _envelope_name(data, start, codec)
    inside = _NAME_LENGTH + len(name) + data_length
    limit = min(MAX_PAYLOAD - inside, 256**data_length - 1)
    width = RESPONSE_SIZE + inside
    head = Head(
        before + data[start : start + _NAME_LENGTH] + name + bytes(data_length),
        (LengthField(1, 4, add=inside), LengthField(width - data_length, data_length)),
        limit,
    )
    if not head.frame_length(data, at):
        raise RheosError(Fault.TRANSLATION_ERROR)
    return head, ResponseFields(before[5:], name)


def _envelope_name(data: bytes, start: int, codec: Codec) -> tuple[bytes, int]:
    """Return the name in the envelope at ``start``, and the size of the length after it."""
    size = codec.layout.data_length
    if len(data) < start + _NAME_LENGTH:
        raise LookupError
    length = int.from_bytes(data[start : start + _NAME_LENGTH], "little")
    if not 0 < length <= _MAX_NAME:
        raise RheosError(Fault.TRANSLATION_ERROR)
    stop = start + _NAME_LENGTH + length
    if len(data) < stop + size:
        raise LookupError
    return data[stop - length : stop], size


def response_table(codec: Codec, envelope: bool) -> HeadTable:
    """Return a table that scans responses; their addresses are ``ResponseFields`` objects."""

    def learn(data: bytes, at: int) -> tuple[Head, ResponseFields] | None:
        if data[at] != RESPONSE_SIZE:
            return None
        try:
            return learn_response(data, at, codec, envelope)
        except (LookupError, RheosError):
            return None

    return HeadTable(learn)
