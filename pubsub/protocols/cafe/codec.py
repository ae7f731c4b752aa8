"""cafe: frames and their header. Sans-IO; ``seeds/cafe.md`` is the specification.

The header is ``<HBI``: magic 0xCAFE (on the wire ``fe ca``), opcode, payload length. Most
PUBLISH and MESSAGE frames do not pass through this module but through the kernel
(``message_heads.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TypeAlias

from pubsub.wire.fields import (
    U8,
    FieldError,
    counted,
    decode_fields,
    encode_fields,
    remainder,
    u8,
    u64,
)

HEADER = Struct("<HBI")
MAGIC = 0xCAFE
MAX_PAYLOAD = 1_048_576
MESSAGE_OVERHEAD = HEADER.size + 9
# MESSAGE has 8 bytes more than PUBLISH; a payload of this length fits both (cafe §5.2).
MAX_MESSAGE = MAX_PAYLOAD - 9
# The magic of a client that writes it big-endian, read little-endian.
_SWAPPED = 0xFECA


class ErrorCode(IntEnum):
    """The code of an ERROR frame or of a failed HANDSHAKE_ACK."""

    INVALID_HANDSHAKE = 0x01
    CHANNEL_NOT_FOUND = 0x02
    MESSAGE_TOO_LARGE = 0x03
    RATE_LIMIT_EXCEEDED = 0x04
    PROTOCOL_VERSION_MISMATCH = 0x05
    INVALID_OPCODE = 0x06
    MALFORMED_MESSAGE = 0x07
    UNAUTHORIZED = 0x08


@dataclass(frozen=True, slots=True)
class HandshakePub:
    """Client to broker: be a publisher."""

    channel: int = u8()
    client_id: bytes = counted(U8)


@dataclass(frozen=True, slots=True)
class HandshakeSub:
    """Client to broker: be a subscriber to ``channels``, one byte each."""

    channels: bytes = counted(U8)
    client_id: bytes = counted(U8)


@dataclass(frozen=True, slots=True)
class HandshakeAck:
    """Broker to client: ``status`` 0 and the session's id, or an ErrorCode and 0."""

    status: int = u8()
    session_id: int = u64()


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Either way: the sender closes the connection."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Publisher to broker: a message."""

    channel: int = u8()
    payload: bytes = remainder()


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscriber to broker: subscribe to a channel."""

    channel: int = u8()


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Subscriber to broker: end the subscription to a channel."""

    channel: int = u8()


@dataclass(frozen=True, slots=True)
class Message:
    """Broker to subscriber: a message and its timestamp, in ms since the Unix epoch."""

    channel: int = u8()
    timestamp: int = u64()
    payload: bytes = remainder()


@dataclass(frozen=True, slots=True)
class Ping:
    """Either way: request a PONG."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Either way: the reply to a PING."""


@dataclass(frozen=True, slots=True)
class Error:
    """Broker to client: a request was refused, or the connection ends."""

    code: int = u8()


Frame: TypeAlias = (
    HandshakePub
    | HandshakeSub
    | HandshakeAck
    | Disconnect
    | Publish
    | Subscribe
    | Unsubscribe
    | Message
    | Ping
    | Pong
    | Error
)

FRAMES: dict[int, type[Frame]] = {
    0x01: HandshakePub,
    0x02: HandshakeSub,
    0x03: HandshakeAck,
    0x04: Disconnect,
    0x10: Publish,
    0x11: Subscribe,
    0x12: Unsubscribe,
    0x13: Message,
    0x20: Ping,
    0x21: Pong,
    0xFF: Error,
}
OPCODES = {frame: opcode for opcode, frame in FRAMES.items()}
FROM_BROKER = frozenset({HandshakeAck, Message, Error})
HANDSHAKES = frozenset({HandshakePub, HandshakeSub})


class CafeError(Exception):
    """Bytes that are not a frame.

    ``end`` is where the frame ends if its header is valid, else None. The stream can be decoded
    further only after INVALID_OPCODE.
    """

    def __init__(self, code: ErrorCode, end: int | None = None) -> None:
        super().__init__(code.name)
        self.code = code
        self.end = end


def encode(frame: Frame) -> bytes:
    """Return the whole frame. Raises OverflowError for a value that its field cannot hold."""
    payload = encode_fields(frame)
    return HEADER.pack(MAGIC, OPCODES[type(frame)], len(payload)) + payload


def needed(data: bytes, at: int) -> int:
    """Return how many bytes there must be from ``at`` on: a header, or the frame it announces.

    Raises CafeError for a header that is not valid.
    """
    if len(data) - at < HEADER.size:
        return HEADER.size
    magic, _opcode, length = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        swapped = magic == _SWAPPED
        raise CafeError(
            ErrorCode.PROTOCOL_VERSION_MISMATCH if swapped else ErrorCode.MALFORMED_MESSAGE
        )
    if length > MAX_PAYLOAD:
        raise CafeError(ErrorCode.MESSAGE_TOO_LARGE)
    return HEADER.size + int(length)


def decode(data: bytes, at: int = 0) -> tuple[Frame, int] | None:
    """Return the frame that starts at ``at`` and where it ends; None if it is incomplete.

    Raises CafeError.
    """
    end = at + needed(data, at)
    if end > len(data):
        return None
    frame = FRAMES.get(data[at + 2])
    if frame is None:
        raise CafeError(ErrorCode.INVALID_OPCODE, end)
    try:
        return decode_fields(frame, data[at + HEADER.size : end]), end
    except FieldError:
        handshake = frame in HANDSHAKES
        code = ErrorCode.INVALID_HANDSHAKE if handshake else ErrorCode.MALFORMED_MESSAGE
        raise CafeError(code, end) from None


def split_frames(data: bytes, limit: int) -> list[bytes]:
    """Cut whole frames into pieces of at most ``limit`` bytes, or of one longer frame."""
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
