"""rheos's messages as the kernel scans and encodes them: PUBLISH in, responses out (rheos §2, §5).

With checksums, the kernel counts a request's checksum as the end of its payload; ``unseal`` then
checks and removes it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from pubsub.kernel import Columns, Head, LengthField
from pubsub.protocols.rheos.codec import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    MAGIC,
    MAX_PAYLOAD,
    NIL,
    RESPONSE_SIZE,
    Codec,
    Layout,
    Opcode,
    OriginalHeader,
    SpecHeader,
)
from pubsub.wire.fields import decode_fields

SENDER_AT, SENDER_SIZE = 5, 16
"""The position of the sender's id in a response."""
_MAX_NAME = 255
# The CRC-32 of any bytes that are followed by their own checksum.
_RESIDUE = 0x2144DF1C


class Source(NamedTuple):
    """The client id and the topic's name that PUBLISH requests were sent with."""

    client_id: bytes
    topic: bytes


def learn_publish(data: bytes, at: int, codec: Codec) -> tuple[Head, Source] | None:
    """Return the head and the source of the PUBLISH at ``at``; None for any other request."""
    name = at + HEADER_SIZE + 2
    if len(data) < name or data[at] != MAGIC:
        return None
    name_length = int.from_bytes(data[name - 2 : name], "little")
    data_length = codec.layout.data_length
    width = HEADER_SIZE + 2 + name_length + data_length
    if len(data) - at < width or name_length > _MAX_NAME:
        return None
    header = _header_with(codec.layout, data[at + 5 : at + HEADER_SIZE])
    if header.opcode != Opcode.PUBLISH or header.client_id == NIL:
        return None
    seal = CHECKSUM_SIZE * codec.checksum
    body = 2 + name_length + data_length
    limit = min(MAX_PAYLOAD - body, 256**data_length - 1)
    head = Head(
        data[at : at + 1] + bytes(4) + data[at + 5 : at + width - data_length] + bytes(data_length),
        (
            LengthField(1, 4, add=body - seal),
            LengthField(width - data_length, data_length, add=-seal),
        ),
        limit + seal,
        seal,
    )
    return head, Source(header.client_id, data[name : name + name_length])


@lru_cache(maxsize=1024)
def _header_with(layout: Layout, behind_length: bytes) -> SpecHeader | OriginalHeader:
    """Return a header with these bytes behind its length, which publishers repeat."""
    return decode_fields(layout.header, bytes(4) + behind_length)


def request_bytes(source: Source, columns: Columns, codec: Codec) -> int:
    """Return the bytes of the PUBLISH requests of ``columns``."""
    around = _bytes_before(codec) + len(source.topic) + CHECKSUM_SIZE * codec.checksum
    return around * columns.count + columns.nbytes


def _bytes_before(codec: Codec) -> int:
    """Return the bytes of a PUBLISH before its data, without the topic's name."""
    return HEADER_SIZE + 2 + codec.layout.data_length


def unseal(columns: Columns, data: bytes, at: int, codec: Codec) -> tuple[Columns, int]:
    """Return the messages scanned from ``at`` on without their checksums, and where they end.

    They end before the first wrong checksum.
    """
    before = _bytes_before(codec)
    widths = [before + len(source.topic) for source in columns.addresses]
    view, payloads = memoryview(data), []
    for index, payload in zip(columns.indexes(), columns.payloads(), strict=True):
        stop = at + widths[index] + len(payload)
        if crc32(view[at:stop]) != _RESIDUE:
            break
        payloads.append(payload[:-CHECKSUM_SIZE])
        at = stop
    indexes = columns.indexes()[: len(payloads)]
    # Indexes are numbered in the order in which their addresses appear.
    addresses = columns.addresses[: max(indexes, default=-1) + 1]
    return Columns.of(payloads, indexes, addresses), at


def response_heads(envelope: bytes, data_length: int, limit: int) -> tuple[Head, ...]:
    """Return the head of a response of at most ``limit`` bytes; the sender's id is variable.

    ``envelope`` and a length of ``data_length`` bytes stand before the payload, if it is not empty.
    """
    before = bytes((RESPONSE_SIZE,)) + bytes(4) + bytes(SENDER_SIZE)
    if not envelope:
        return (Head(before, (LengthField(1, 4),), limit),)
    data = before + envelope + bytes(data_length)
    fields = (
        LengthField(1, 4, add=len(envelope) + data_length),
        LengthField(len(data) - data_length, data_length),
    )
    return (Head(data, fields, limit),)
