"""The fast wire: binary packets, each with a token, and big-endian integers."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Sequence

from tests.bench import BenchError
from tests.bench.wires.frame import Frame
from tests.bench.wires.preparation import Preparation

CREATE, SUBSCRIBE, PUBLISH, MESSAGE, UNSUBSCRIBE = 1, 2, 3, 4, 5
MAX_PAYLOAD = 1 << 20
# Success has no reply. Therefore the last request of a hello is one that is refused.
NOWHERE = 0
DONE = b"\x7f" + bytes([UNSUBSCRIBE, 4]) + bytes(4)

SECRET = b"a secret of the load generator alone"
PREPARATION = Preparation(("--secret-file=secret",), {"secret": SECRET})


def _base64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def token(client: str) -> bytes:
    """Return a token of typical length: subject, queue key, two permissions and an expiry."""
    claims = {"sub": client, "queue_key": "bench-key", "permissions": ["publish", "subscribe"]}
    header = {"alg": "HS256", "typ": "JWT"}
    whole = {**claims, "exp": 4_102_444_800}
    texts = [json.dumps(value, separators=(",", ":")) for value in (header, whole)]
    signed = b".".join(_base64(text.encode()) for text in texts)
    return signed + b"." + _base64(hmac.digest(SECRET, signed, "sha256"))


TOKEN = token("bench-publisher")


class FastWire:
    """A topic is ``bench/<number>``. All publishers use one token."""

    name = "fast"
    max_payload = MAX_PAYLOAD
    topics = 10_000

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        return _create(TOKEN, topics) + _finish(TOKEN)

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        own = token(client)
        subscribe = b"".join(_head(SUBSCRIBE, own) + _id(topic) for topic in topics)
        return _create(own, topics) + subscribe + _finish(own)

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        if DONE.startswith(answer) and len(answer) < len(DONE):
            return False
        if answer != DONE:
            raise BenchError(f"the broker answered fast requests with {answer[:32].hex(' ')}")
        return True

    def publication(self, topic: int, payload: int) -> Frame:
        return fast_publication(TOKEN, topic, payload)

    def delivery(self, topic: int, payload: int) -> Frame:
        before = bytes([MESSAGE]) + _id(topic) + payload.to_bytes(4, "big")
        return Frame(before, payload, fixed=len(before))


def fast_publication(own: bytes, topic: int, payload: int) -> Frame:
    """Return the frame of one message that is published with this token."""
    before = _head(PUBLISH, own) + _id(topic) + payload.to_bytes(4, "big")
    return Frame(before, payload, fixed=len(before))


def _head(kind: int, token: bytes) -> bytes:
    return bytes([kind, len(token)]) + token


def _create(token: bytes, topics: Sequence[int]) -> bytes:
    names = [_name(topic) for topic in topics]
    return b"".join(_head(CREATE, token) + bytes([len(name)]) + name + b"\0" for name in names)


def _finish(token: bytes) -> bytes:
    return _head(UNSUBSCRIBE, token) + NOWHERE.to_bytes(4, "big")


def _name(number: int) -> bytes:
    return b"bench/%d" % number


def _id(number: int) -> bytes:
    """Return the FNV-1a 32 hash of the topic's name."""
    value = 0x811C9DC5
    for byte in _name(number):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value.to_bytes(4, "big")
