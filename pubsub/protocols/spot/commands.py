"""spot: the commands of clients and brokers, as frames of a message. Sans-IO; ``seeds/spot.md`` §3.

The bytes of frames are ``zmtp.py``; ``message_heads.py`` handles runs of PUBLISH and of deliveries,
which are most of the traffic, and ``broker_commands.py`` the commands of §7.7.

A request may begin with an empty delimiter frame, and PUBLISH may have its origin before the topic.
The messages that are encoded here always have the delimiter and never an origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pubsub.broker.routing.batch import MAX_SENDER
from pubsub.protocols.spot.message_heads import publish_prefix
from pubsub.protocols.spot.zmtp import MORE, encode_message, frame_head

PUBLISH, SUBSCRIBE, UNSUBSCRIBE, QUERY, QUERY_RESP = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"
_COUNT_BYTES = 4
# Bytes of a routing id (RFC 28).
_MAX_ROUTING_ID = 255


class SpotError(Exception):
    """A message that is not a command; EPROTO in the original (spot §6.1)."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Client to server: a message for ``topic``; server to client: one of a subscription."""

    topic: bytes
    data: bytes
    origin: bytes | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Client to server: subscribe to this topic, or to all that match ``prefix*``."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Client to server: end a subscription."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class Query:
    """Client to server: list the topics that the server hosts."""


@dataclass(frozen=True, slots=True)
class QueryResponse:
    """Server to client: the topics that the server hosts."""

    topics: Sequence[bytes]


Request: TypeAlias = Publish | Subscribe | Unsubscribe | Query | QueryResponse


def decode_request(frames: Sequence[bytes]) -> Request:
    """Return the command in a message; raises SpotError."""
    match list(frames[1:] if not frames[0] else frames):
        case [b"\x01", topic, data]:
            return Publish(topic, data)
        case [b"\x01", origin, topic, data] if len(origin) <= MAX_SENDER:
            return Publish(topic, data, origin)
        case [b"\x02", topic]:
            return Subscribe(topic)
        case [b"\x03", topic]:
            return Unsubscribe(topic)
        case [b"\x04"]:
            return Query()
        case [b"\x05", count, *topics] if len(count) == _COUNT_BYTES:
            if int.from_bytes(count, "little") == len(topics):
                return QueryResponse(topics)
    raise SpotError


def decode_routed(frames: Sequence[bytes]) -> tuple[bytes, Request]:
    """Return the routing ids before a command, as frames with MORE, and the command.

    They are the frames up to an empty one, or one frame (spot §3.6). Raises SpotError.
    """
    delimiter = next((at for at, frame in enumerate(frames) if not frame), 1)
    for count in (delimiter, 1):
        ids, rest = frames[:count], frames[count:]
        if not (ids and ids[0] and rest) or max(map(len, ids)) > _MAX_ROUTING_ID:
            continue
        try:
            request = decode_request(rest)
        except SpotError:
            continue
        return b"".join([frame_head(len(one), MORE) + one for one in ids]), request
    raise SpotError


def encode_request(request: Request) -> bytes:
    """Return the message, with a delimiter."""
    match request:
        case Publish(topic, data):
            return publish_prefix(topic) + frame_head(len(data)) + data
        case Subscribe(topic):
            return encode_message([b"", SUBSCRIBE, topic])
        case Unsubscribe(topic):
            return encode_message([b"", UNSUBSCRIBE, topic])
        case Query():
            return encode_message([b"", QUERY])
        case QueryResponse(topics):
            encoder = QueryResponseEncoder()
            encoder.add(topics)
            return encoder.finish()


class QueryResponseEncoder:
    """Encodes a QueryResponse some topics at a time, as there may be many."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._last: bytes | None = None
        self._count = 0

    def add(self, topics: Sequence[bytes]) -> int:
        """Add ``topics``; return the number of bytes that this adds."""
        if not topics:
            return 0
        before = topics[:-1] if self._last is None else (self._last, *topics[:-1])
        frames = b"".join([frame_head(len(topic), MORE) + topic for topic in before])
        self._frames.append(frames)
        self._last = topics[-1]
        self._count += len(topics)
        return len(frames)

    def finish(self) -> bytes:
        """Return the message, with a delimiter."""
        count = self._count.to_bytes(_COUNT_BYTES, "little")
        if self._last is None:
            return encode_message([b"", QUERY_RESP, count])
        heads = [frame_head(len(frame), MORE) + frame for frame in (b"", QUERY_RESP, count)]
        return b"".join((*heads, *self._frames, frame_head(len(self._last)), self._last))
