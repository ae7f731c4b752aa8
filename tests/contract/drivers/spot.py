"""The driver of spot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import ClassVar

from tests.contract.drivers.base import TOPIC, Driver
from tests.unit import fast_wire
from tests.unit.brokers import QUERY, message, ready
from tests.unit.streams import Client, House


class Spot(Driver):
    """Clients are DEALER sockets."""

    name = "spot"
    closes = True
    limit = 1_048_576
    _numbers: ClassVar = count()

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._identities: dict[Client, bytes] = {}

    def connect(self) -> Client:
        client = super().connect()
        client.send(ready(b"DEALER"))
        self.house.turn()
        if not client.closed:
            client.take()
        return client

    def publisher(self, topic: str = TOPIC) -> Client:
        return self.connect()

    def listener(self) -> Client:
        """Return a client with its own identity, so that it can resume."""
        return self._named(b"reader-%d" % next(self._numbers))

    def _named(self, identity: bytes) -> Client:
        client = super().connect()
        client.send(ready(b"DEALER", identity))
        self.house.turn()
        client.take()
        self._identities[client] = identity
        return client

    def resume(self, client: Client) -> Client:
        return self._named(self._identities[client])

    def publish(self, client: Client, *payloads: bytes, topic: str = TOPIC) -> bytes:
        head = b"\x01\0\x01\x01\x01\x01" + bytes([len(topic.encode())]) + topic.encode()
        return b"".join(head + self._last(payload) for payload in payloads)

    @staticmethod
    def _last(payload: bytes) -> bytes:
        if len(payload) < 256:
            return bytes([0, len(payload)]) + payload
        return b"\x02" + len(payload).to_bytes(8, "big") + payload

    def subscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        return message(b"", b"\x02", topic.encode())

    def unsubscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        return message(b"", b"\x03", topic.encode())

    def questions(self, client: Client) -> Mapping[str, bytes]:
        return {"ping": b"\x04\x07\x04PING\0\x1e"}

    def refused(self, reason: str, topic: str = TOPIC) -> bytes:
        return b""

    def over_quota_reply(self) -> bytes:
        return b""

    def malformed(self) -> tuple[bytes, bytes, bool]:
        return b"\xf8\0", b"", True

    def payloads(self, data: bytes) -> Iterator[bytes]:
        while data:
            assert data.startswith(b"\x01\0\x01\x01\x01\x01"), data
            at = 7 + data[6]
            long = data[at] == 2
            start = at + (9 if long else 2)
            end = start + int.from_bytes(data[at + 1 : start], "big")
            assert len(data) >= end
            yield data[start:end]
            data = data[end:]

    def attempts(self, topic: str = TOPIC) -> Mapping[str, Callable[[], bytes]]:
        def listing() -> bytes:
            answer = self.ask(self.connect(), QUERY)
            assert answer.startswith(b"\x01\0\x01\x01\x05"), answer
            return answer if topic.encode() in answer else b""

        def pattern(request: bytes, kind: bytes) -> Callable[[], bytes]:
            def attempt() -> bytes:
                client = super(Spot, self).connect()
                client.send(ready(kind) + request)
                self.house.turn()
                client.take()
                return self._after_publishing(client, topic)

            return attempt

        return {
            "listing": listing,
            "pattern": pattern(message(b"", b"\x02", topic[:2].encode() + b"*"), b"DEALER"),
            "everything": pattern(message(b"", b"\x02", b"*"), b"DEALER"),
            "prefix of a SUB socket": pattern(message(b"\x01"), b"SUB"),
            "message of a PUB socket": pattern(message(topic.encode(), b"from PUB"), b"PUB"),
        }

    def _after_publishing(self, client: Client, topic: str) -> bytes:
        """Return the bytes that ``client`` receives of a message of the topic's owner."""
        owner = self.house.connect("fast")
        if topic != TOPIC:
            # The broker's own topic has an event for the new connection.
            self.house.turn()
            return client.take()
        owner.send(fast_wire.publish(fast_wire.OWNER, b"secret", topic=fast_wire.topic_id(TOPIC)))
        assert owner.take() == b""
        self.house.turn()
        return client.take()
