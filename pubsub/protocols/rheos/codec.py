"""rheos requests, acknowledgments and responses. Sans-IO; ``seeds/rheos.md`` is the specification.

A request is a header of 22 bytes and a body in the topic encoding. Two layouts of it are in use,
and a revision of both in which requests and acknowledgments end with a checksum. A ``Codec``
handles one combination. ``message_heads.py`` handles runs of PUBLISH and of responses, which are
most of the traffic, and ``acknowledgments.py`` those of acknowledgments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache
from typing import TypeAlias
from zlib import crc32

from pubsub.wire.fields import (
    U16,
    U32,
    FieldError,
    counted,
    decode_fields,
    encode_fields,
    fixed,
    u8,
    u32,
)

MAGIC = 0xFA
ACK_MAGIC = 0xAC
HEADER_SIZE = 22
ACK_SIZE = 18
RESPONSE_SIZE = 21
"""Bytes of a response's header; also its first byte."""
CHECKSUM_SIZE = 4
MAX_PAYLOAD = 1_048_576
"""The largest payload length of a request or a response."""
NIL = bytes(16)
SUCCESS, FAILED = 0, 1


class Opcode(IntEnum):
    """The operations of requests (rheos §2.2)."""

    CREATE = 0
    SUBSCRIBE = 1
    PUBLISH = 2


PROBE = 3
"""No operation: the opcode of a client that wants a reply (rheos §6.1)."""


class Fault(Enum):
    """The faults of malformed packets; the value is the reason that is counted."""

    CORRUPTED_DATA = "corrupted-data"
    INVALID_OPERATION = "invalid-operation"
    CORRUPTED_TOPIC = "corrupted-topic"
    TRANSLATION_ERROR = "translation-error"


@dataclass(frozen=True, slots=True)
class SpecHeader:
    """A request's header after the magic, as specified."""

    length: int = u32()
    client_id: bytes = fixed(16)
    opcode: int = u8()


@dataclass(frozen=True, slots=True)
class OriginalHeader:
    """A request's header after the magic, in the original layout."""

    length: int = u32()
    opcode: int = u8()
    client_id: bytes = fixed(16)


@dataclass(frozen=True, slots=True)
class SpecTopic:
    """The topic encoding, as specified."""

    name: bytes = counted(U16)
    data: bytes = counted(U16)


@dataclass(frozen=True, slots=True)
class OriginalTopic:
    """The topic encoding of the original layout, with a longer data length."""

    name: bytes = counted(U16)
    data: bytes = counted(U32)


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout of requests; ``data_length`` is the size of the data's length field, in bytes."""

    header: type[SpecHeader | OriginalHeader]
    topic: type[SpecTopic | OriginalTopic]
    data_length: int


LAYOUTS = {
    "spec": Layout(SpecHeader, SpecTopic, 2),
    "original": Layout(OriginalHeader, OriginalTopic, 4),
}


@dataclass(frozen=True, slots=True)
class Request:
    """Client to broker. ``data`` is the message in PUBLISH and ignored otherwise."""

    opcode: int
    client_id: bytes
    topic: bytes
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Ack:
    """Broker to client: ``code`` is SUCCESS or FAILED."""

    message_id: bytes = fixed(16)
    code: int = u8()


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """A response's header after its first byte."""

    length: int = u32()
    sender_id: bytes = fixed(16)


@dataclass(frozen=True, slots=True)
class Response:
    """Broker to client: a message, or the topic encoding of one."""

    sender_id: bytes
    payload: bytes


Packet: TypeAlias = Request | Ack | Response


class RheosError(Exception):
    """A malformed packet.

    ``end`` is the position after it, or None if the stream cannot be parsed any further.
    """

    def __init__(self, fault: Fault, end: int | None = None) -> None:
        super().__init__(fault.name)
        self.fault = fault
        self.end = end


@lru_cache(maxsize=4096)
def response_head(sender_id: bytes, length: int) -> bytes:
    """Return the header of a response with a payload of ``length`` bytes."""
    return bytes((RESPONSE_SIZE,)) + encode_fields(ResponseHeader(length, sender_id))


class Codec:
    """Encodes and decodes packets of one layout, with or without checksums."""

    def __init__(self, layout: str = "spec", checksum: bool = False) -> None:
        self.layout = LAYOUTS[layout]
        self.checksum = checksum
        self.failed = self.encode(Ack(NIL, FAILED))

    def encode(self, packet: Packet) -> bytes:
        """Return the encoded packet; raises OverflowError for a value too large for its field."""
        match packet:
            case Request():
                return self._with_checksum(self._request(packet))
            case Ack():
                return self._with_checksum(bytes((ACK_MAGIC,)) + encode_fields(packet))
            case Response(sender_id, payload):
                return response_head(sender_id, len(payload)) + payload

    def topic(self, name: bytes, data: bytes) -> bytes:
        """Return the topic encoding; raises OverflowError."""
        return encode_fields(self.layout.topic(name, data))

    def _request(self, request: Request) -> bytes:
        body = self.topic(request.topic, request.data)
        header = self.layout.header(
            length=len(body), client_id=request.client_id, opcode=request.opcode
        )
        return bytes((MAGIC,)) + encode_fields(header) + body

    def _with_checksum(self, packet: bytes) -> bytes:
        return packet + crc32(packet).to_bytes(CHECKSUM_SIZE, "little") if self.checksum else packet

    def is_probe(self, packet: bytes) -> bool:
        """Return whether an invalid request asks for nothing but a reply (rheos §6.1)."""
        client_id = decode_fields(self.layout.header, packet[1:HEADER_SIZE]).client_id
        return packet == self.encode(Request(PROBE, client_id, b""))

    def needed(self, data: bytes, at: int) -> int:
        """Return the bytes from ``at`` on that the next step needs: a header, or a whole request.

        Raises RheosError for an invalid header.
        """
        if at < len(data) and data[at] != MAGIC:
            raise RheosError(Fault.CORRUPTED_DATA)
        if len(data) - at < HEADER_SIZE:
            return HEADER_SIZE
        length = int.from_bytes(data[at + 1 : at + 5], "little")
        if length > MAX_PAYLOAD:
            raise RheosError(Fault.CORRUPTED_DATA)
        return HEADER_SIZE + length + CHECKSUM_SIZE * self.checksum

    def decode(self, data: bytes, at: int = 0) -> tuple[Request, int] | None:
        """Return the request at ``at`` and the position after it; None if it is incomplete.

        Raises RheosError.
        """
        end = at + self.needed(data, at)
        if end > len(data):
            return None
        start = at + HEADER_SIZE
        stop = self._check_checksum(data, at, end)
        header = decode_fields(self.layout.header, data[at + 1 : start])
        if header.opcode > max(Opcode):
            raise RheosError(Fault.INVALID_OPERATION, end)
        if header.client_id == NIL:
            raise RheosError(Fault.CORRUPTED_DATA, end)
        try:
            topic = decode_fields(self.layout.topic, data[start:stop])
        except FieldError:
            raise RheosError(Fault.CORRUPTED_TOPIC, end) from None
        return Request(header.opcode, header.client_id, topic.name, topic.data), end

    def decode_answer(self, data: bytes, at: int = 0) -> tuple[Ack | Response, int] | None:
        """Return a packet that the broker sent, as ``decode``; for clients. Raises RheosError."""
        if at >= len(data):
            return None
        if data[at] == ACK_MAGIC:
            return self._ack(data, at)
        if data[at] == RESPONSE_SIZE:
            return self._response(data, at)
        raise RheosError(Fault.TRANSLATION_ERROR)

    def _ack(self, data: bytes, at: int) -> tuple[Ack, int] | None:
        end = at + ACK_SIZE + CHECKSUM_SIZE * self.checksum
        if end > len(data):
            return None
        ack = decode_fields(Ack, data[at + 1 : self._check_checksum(data, at, end)])
        if ack.code > FAILED:
            raise RheosError(Fault.CORRUPTED_DATA, end)
        return ack, end

    def _response(self, data: bytes, at: int) -> tuple[Response, int] | None:
        start = at + RESPONSE_SIZE
        if start > len(data):
            return None
        header = decode_fields(ResponseHeader, data[at + 1 : start])
        if header.length > MAX_PAYLOAD:
            raise RheosError(Fault.TRANSLATION_ERROR)
        end = start + header.length
        return (Response(header.sender_id, data[start:end]), end) if end <= len(data) else None

    def _check_checksum(self, data: bytes, at: int, end: int) -> int:
        """Return the end of the packet from ``at`` to ``end`` without its checksum.

        Raises RheosError if the checksum is wrong. The stream then cannot be parsed any further,
        because the length itself may be damaged.
        """
        if not self.checksum:
            return end
        stop = end - CHECKSUM_SIZE
        if crc32(data[at:stop]) != int.from_bytes(data[stop:end], "little"):
            raise RheosError(Fault.CORRUPTED_DATA)
        return stop
