"""The rheos wire: binary requests with a client id, each acknowledged."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import NAMESPACE_URL, uuid5

from tests.bench import BenchError
from tests.bench.wires.frame import Frame

HEADER = struct.Struct("<BI16sB")
MAGIC = 0xFA
CREATE = 0
SUBSCRIBE = 1
PUBLISH = 2

ACK_MAGIC = 0xAC
ACK_SIZE = 18
SUCCESS = b"\0"
ACKNOWLEDGMENT = Frame(bytes([ACK_MAGIC]) + bytes(16), 0, SUCCESS, fixed=1)
RESPONSE_HEADER = struct.Struct("<BI16s")
# The length of a message has 16 bits.
MAX_PAYLOAD = (1 << 16) - 1


class RheosWire:
    """A topic is a name. All publishers are one client without subscriptions."""

    name = "rheos"
    max_payload = MAX_PAYLOAD
    topics = 10_000

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        # The topic of the client is new, so the last acknowledgment reports success. There are as
        # many requests as in the hello of a subscriber.
        names = [_name(topic) for topic in topics]
        return b"".join(request(CREATE, PUBLISHER, name) for name in (*names, *names[1:], client))

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        me = client_id(client)
        return b"".join(
            request(opcode, me, _name(topic)) for opcode in (CREATE, SUBSCRIBE) for topic in topics
        )

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        # Those of CREATE can be failures, if another client created the topic before.
        if len(answer) < 2 * topics * ACK_SIZE:
            return False
        if answer[-ACK_SIZE] != ACK_MAGIC or answer[-1:] != SUCCESS:
            raise BenchError(f"the broker answered rheos requests with {answer[-ACK_SIZE:].hex()}")
        return True

    def publication(self, topic: int, payload: int) -> Frame:
        return publish_request(PUBLISHER, topic, payload)

    def delivery(self, topic: int, payload: int) -> Frame:
        before = RESPONSE_HEADER.pack(RESPONSE_HEADER.size, payload, PUBLISHER)
        return Frame(before, payload, fixed=len(before))


def request(opcode: int, client: bytes, topic: str, data: bytes = b"") -> bytes:
    """Return a complete request."""
    name = topic.encode()
    body = struct.pack("<H", len(name)) + name + struct.pack("<H", len(data)) + data
    return HEADER.pack(MAGIC, len(body), client, opcode) + body


def publish_request(client: bytes, topic: int, payload: int) -> Frame:
    """Return the frame of one message that is published by ``client``."""
    before = request(PUBLISH, client, _name(topic), bytes(payload))[:-payload]
    return Frame(before, payload, fixed=len(before), answer=ACKNOWLEDGMENT)


def _name(topic: int) -> str:
    return f"bench/{topic}"


def client_id(client: str) -> bytes:
    """Return the id of ``client``."""
    return uuid5(NAMESPACE_URL, client).bytes


PUBLISHER = client_id("bench-publisher")
