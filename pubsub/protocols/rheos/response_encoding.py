"""rheos responses: their encoding and their sender ids (rheos §5.4, §5.5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

from pubsub.kernel import Head
from pubsub.protocols.rheos.codec import MAX_PAYLOAD, Codec
from pubsub.protocols.rheos.message_heads import SENDER_AT, SENDER_SIZE, response_heads

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import Topic

PROTOCOL = "rheos"
SENDER_NAMESPACE = UUID("a3c7e0f4-6b1d-5e92-8d35-41f07b9c26de")
"""The UUID namespace for senders of other protocols."""


def client_name(client_id: bytes) -> str:
    """Return a client id as logs, counters and other protocols show it."""
    return str(UUID(bytes=client_id))


@lru_cache(maxsize=4096)
def sender_id(protocol: str, sender: bytes) -> bytes:
    """Return the sender's client id; for other protocols the UUIDv5 of the sender's name."""
    if protocol == PROTOCOL:
        return UUID(sender.decode()).bytes
    # Same as uuid.uuid5, which accepts only text as the name.
    return UUID(bytes=sha1(SENDER_NAMESPACE.bytes + sender).digest()[:16], version=5).bytes


@dataclass(frozen=True, slots=True)
class ResponseEncoding:
    """Encodes a batch as responses.

    In an envelope, ``before`` and a length of ``data_length`` bytes precede the data; ``limit`` is
    the longest message that fits.
    """

    before: bytes = b""
    data_length: int = 0
    limit: int = MAX_PAYLOAD
    variable_at: ClassVar[int] = SENDER_AT
    variable_size: ClassVar[int] = SENDER_SIZE
    by_timestamp: ClassVar[bool] = False

    @property
    def heads(self) -> tuple[Head, ...]:
        """See ``HeadEncoding``."""
        return response_heads(self.before, self.data_length, self.limit)

    def variable(self, batch: Batch) -> bytes:
        """Return the sender's id."""
        return sender_id(batch.protocol, batch.sender)


_BARE = ResponseEncoding()


def encoding_of(topic: Topic, codec: Codec, envelope: bool) -> ResponseEncoding:
    """Return the encoding of ``topic`` for clients that use ``codec``."""
    if not envelope:
        return _BARE
    size = codec.layout.data_length
    before = codec.topic(topic.name.encode(), b"")[:-size]
    limit = min(MAX_PAYLOAD - len(before) - size, 256**size - 1)
    return ResponseEncoding(before, size, limit)
