"""fast packets. Sans-IO; ``seeds/fast.md`` is the specification.

A packet is a type byte and a sequence of fields, each of which has its own length, all big-endian.
There is no length of the whole packet, so a packet that cannot be parsed cannot be skipped.
``message_heads.py`` handles runs of PUBLISH and MESSAGE, which are most of the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from pubsub.broker.credentials.queue_key_limit import MAX_KEY
from pubsub.wire.fields import (
    U8,
    U32_BE,
    FieldError,
    counted,
    decode_prefix,
    encode_fields,
    u8,
    u32_be,
)

PUBLISH = 0x03
DURABLE, EXCLUSIVE = 0x01, 0x02
# Bytes of a PUBLISH without token and payload: type, token length, topic id, payload length.
PUBLISH_OVERHEAD = 10


class ErrorCode(IntEnum):
    """The codes of ERROR (fast §6)."""

    BAD_TOKEN = 1
    WRONG_QUEUE_KEY = 2
    MISSING_PERMISSION = 3
    NO_SUCH_TOPIC = 4
    TOPIC_EXISTS = 5
    ID_COLLISION = 6
    TOO_LARGE = 7
    RATE_LIMITED = 8
    SUBSCRIPTION_ENDED = 9
    INVALID_REQUEST = 10


@dataclass(frozen=True, slots=True)
class Create:
    """Client to broker: create a topic with the queue key of the token."""

    token: bytes = counted(U8)
    name: bytes = counted(U8)
    flags: int = u8()


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Client to broker: subscribe to a topic."""

    token: bytes = counted(U8)
    topic_id: int = u32_be()


@dataclass(frozen=True, slots=True)
class Publish:
    """Client to broker: publish a message."""

    token: bytes = counted(U8)
    topic_id: int = u32_be()
    payload: bytes = counted(U32_BE)


@dataclass(frozen=True, slots=True)
class Message:
    """Broker to client: deliver a message."""

    topic_id: int = u32_be()
    payload: bytes = counted(U32_BE)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Client to broker: unsubscribe from a topic."""

    token: bytes = counted(U8)
    topic_id: int = u32_be()


@dataclass(frozen=True, slots=True)
class KeyUpdate:
    """Broker to subscriber: the topic's new queue key."""

    topic_id: int = u32_be()
    key: bytes = counted(U8)


@dataclass(frozen=True, slots=True)
class RotateKey:
    """Client to broker: replace the topic's queue key."""

    token: bytes = counted(U8)
    topic_id: int = u32_be()
    key: bytes = counted(U8)

    @property
    def fits(self) -> bool:
        """Whether a token can contain the key."""
        try:
            self.key.decode()
        except UnicodeDecodeError:
            return False
        return 0 < len(self.key) <= MAX_KEY


@dataclass(frozen=True, slots=True)
class Error:
    """Broker to client: a request of type ``offending`` was refused (fast §6)."""

    offending: int = u8()
    code: int = u8()
    topic_id: int = u32_be()


Packet: TypeAlias = (
    Create | Subscribe | Publish | Message | Unsubscribe | KeyUpdate | RotateKey | Error
)

PACKETS: dict[int, type[Packet]] = {
    0x01: Create,
    0x02: Subscribe,
    0x03: Publish,
    0x04: Message,
    0x05: Unsubscribe,
    0x06: KeyUpdate,
    0x07: RotateKey,
    0x7F: Error,
}
TYPES = {packet: number for number, packet in PACKETS.items()}
FROM_CLIENT = frozenset(
    TYPES[packet] for packet in (Create, Subscribe, Publish, Unsubscribe, RotateKey)
)


class FastError(Exception):
    """A malformed packet, after which the stream cannot be parsed any further."""

    def __init__(self, code: ErrorCode, offending: int, topic_id: int = 0) -> None:
        super().__init__(code.name)
        self.code = code
        self.offending = offending
        self.topic_id = topic_id


def encode(packet: Packet) -> bytes:
    """Return the encoded packet; raises OverflowError for a value too large for its field."""
    return bytes((TYPES[type(packet)],)) + encode_fields(packet)


def decode(data: bytes, at: int = 0) -> tuple[Packet, int] | None:
    """Return the packet at ``at`` and the position after it; None if it is incomplete.

    Raises FastError for an unknown type.
    """
    if at >= len(data):
        return None
    packet = PACKETS.get(data[at])
    if packet is None:
        raise FastError(ErrorCode.INVALID_REQUEST, data[at])
    try:
        return decode_prefix(packet, data, at + 1)
    except FieldError:
        return None


def needed(data: bytes, at: int, max_payload: int) -> int:
    """Return the number of bytes from ``at`` on that the next step of parsing needs.

    Raises FastError for a type that clients do not send, and for a PUBLISH with a payload of more
    than ``max_payload`` bytes as soon as its length has arrived.
    """
    available = len(data) - at
    if available and data[at] not in FROM_CLIENT:
        raise FastError(ErrorCode.INVALID_REQUEST, data[at])
    if available < 2 or data[at] != PUBLISH:
        return available + 1
    before = PUBLISH_OVERHEAD + data[at + 1]
    if available < before:
        return before
    length = int.from_bytes(data[at + before - 4 : at + before])
    if length > max_payload:
        topic_id = int.from_bytes(data[at + before - 8 : at + before - 4])
        raise FastError(ErrorCode.TOO_LARGE, PUBLISH, topic_id)
    return before + length


def token_of(packet: Packet) -> bytes:
    """Return the token of a client's packet."""
    token: bytes = getattr(packet, "token", b"")
    return token
