"""The MQTT 3.1.1 wire with QoS 0, for other brokers."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench import BenchError
from tests.bench.wires.frame import Frame

CONNECT, PUBLISH, SUBSCRIBE, SUBACK = 0x10, 0x30, 0x82, 0x90
CONNACK = bytes.fromhex("20 02 00 00")
MAX_PAYLOAD = 1 << 20


class MqttWire:
    """A topic is ``bench/<number>``."""

    name = "mqtt"
    max_payload = MAX_PAYLOAD
    topics = 1000

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        # Clean session, no keep-alive.
        body = _text(b"MQTT") + bytes([4, 2, 0, 0]) + _text(client.encode())
        # Unused subscriptions make the reply the same as for a subscriber.
        return _packet(CONNECT, body) + _subscribe([b"bench/nothing"] * len(topics))

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        body = _text(b"MQTT") + bytes([4, 2, 0, 0]) + _text(client.encode())
        return _packet(CONNECT, body) + _subscribe([_topic(topic) for topic in topics])

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        expected = CONNACK + _packet(SUBACK, b"\0\1" + bytes(topics))
        if not expected.startswith(answer):
            raise BenchError(f"the broker answered an MQTT CONNECT with {answer.hex(' ')}")
        return answer == expected

    def publication(self, topic: int, payload: int) -> Frame:
        before = _packet(PUBLISH, _text(_topic(topic)) + bytes(payload))[:-payload]
        return Frame(before, payload, fixed=len(before))

    def delivery(self, topic: int, payload: int) -> Frame:
        return self.publication(topic, payload)


def _packet(kind: int, body: bytes) -> bytes:
    length = bytearray()
    rest = len(body)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    length.append(rest)
    return bytes([kind]) + length + body


def _text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def _subscribe(topics: Sequence[bytes]) -> bytes:
    return _packet(SUBSCRIBE, b"\0\1" + b"".join(_text(topic) + b"\0" for topic in topics))


def _topic(number: int) -> bytes:
    return b"bench/%d" % number
