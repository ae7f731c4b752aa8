"""The cafe wire: binary frames with a 7-byte header and little-endian integers."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.bench import BenchError
from tests.bench.wires.frame import Frame

HEADER = struct.Struct("<HBI")
MAGIC = 0xCAFE
HANDSHAKE_PUB = 0x01
HANDSHAKE_SUB = 0x02
HANDSHAKE_ACK = 0x03
PUBLISH = 0x10
MESSAGE = 0x13

ACK_SIZE = 16
TIMESTAMP_SIZE = 8
# The payload of a MESSAGE has up to 1 MiB, of which 9 bytes are channel and timestamp.
MAX_PAYLOAD = (1 << 20) - 9


def frame(opcode: int, body: bytes) -> bytes:
    """Return a complete cafe frame."""
    return HEADER.pack(MAGIC, opcode, len(body)) + body


class CafeWire:
    """A topic is a channel number."""

    name = "cafe"
    max_payload = MAX_PAYLOAD
    topics = 256

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        return frame(HANDSHAKE_PUB, bytes([topics[0]]) + _short_string(client))

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        return frame(HANDSHAKE_SUB, bytes([len(topics), *topics]) + _short_string(client))

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        if len(answer) < ACK_SIZE and answer[2:3] in (b"", bytes([HANDSHAKE_ACK])):
            return False
        expected = HEADER.pack(MAGIC, HANDSHAKE_ACK, ACK_SIZE - HEADER.size) + b"\0"
        if len(answer) != ACK_SIZE or not answer.startswith(expected):
            raise BenchError(f"the broker answered a cafe handshake with {answer[:32].hex(' ')}")
        return True

    def publication(self, topic: int, payload: int) -> Frame:
        before = HEADER.pack(MAGIC, PUBLISH, 1 + payload) + bytes([topic])
        return Frame(before, payload, fixed=len(before))

    def delivery(self, topic: int, payload: int) -> Frame:
        start = HEADER.pack(MAGIC, MESSAGE, 1 + TIMESTAMP_SIZE + payload) + bytes([topic])
        return Frame(start + bytes(TIMESTAMP_SIZE), payload, fixed=len(start))


def _short_string(text: str) -> bytes:
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded
