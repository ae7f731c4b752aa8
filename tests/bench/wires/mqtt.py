"""The MQTT 3.1.1 wire with QoS 0, for other brokers."""

from __future__ import annotations

from tests.bench import BenchError
from tests.bench.wires.frame import Frame

CONNECT, PUBLISH, SUBSCRIBE = 0x10, 0x30, 0x82
CONNACK = bytes.fromhex("20 02 00 00")
SUBACK = bytes.fromhex("90 03 00 01 00")
MAX_PAYLOAD = 1 << 20


class MqttWire:
    """A topic is ``bench/<number>``."""

    name = "mqtt"
    max_payload = MAX_PAYLOAD
    topics = 1000

    def publisher_hello(self, topic: int, client: str) -> bytes:
        # Clean session, no keep-alive.
        body = _text(b"MQTT") + bytes([4, 2, 0, 0]) + _text(client.encode())
        # An unused subscription makes the reply the same as for a subscriber.
        return _packet(CONNECT, body) + _subscribe(b"bench/nothing")

    def subscriber_hello(self, topic: int, client: str) -> bytes:
        body = _text(b"MQTT") + bytes([4, 2, 0, 0]) + _text(client.encode())
        return _packet(CONNECT, body) + _subscribe(_topic(topic))

    def welcomed(self, answer: bytes) -> bool:
        expected = CONNACK + SUBACK
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


def _subscribe(topic: bytes) -> bytes:
    return _packet(SUBSCRIBE, b"\0\1" + _text(topic) + b"\0")


def _topic(number: int) -> bytes:
    return b"bench/%d" % number
