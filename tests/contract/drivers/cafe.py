"""The driver of cafe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from tests.contract.drivers.base import (
    NOT_AUTHORIZED,
    NOT_FOUND,
    OTHER,
    RATE_LIMITED,
    TOO_LARGE,
    TOPIC,
    Driver,
)
from tests.unit import cafe_wire
from tests.unit.streams import Client, House


class Cafe(Driver):
    """Channels 1 and 2 are TOPIC and OTHER; channel 3 is not offered."""

    name = "cafe"
    settings: ClassVar[Mapping[str, object]] = {"channels": f"1:{TOPIC},2:{OTHER}"}
    limit = carries = 1_048_567
    conceals = False
    _codes: ClassVar = {
        NOT_AUTHORIZED: 8, NOT_FOUND: 2, TOO_LARGE: 3, RATE_LIMITED: 4,
    }  # fmt: skip

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._sessions: dict[Client, int] = {}

    def _channel(self, topic: str) -> int:
        return {TOPIC: 1, OTHER: 2}.get(topic, 3)

    def _shake(self, handshake: bytes) -> Client:
        client = self.connect()
        answer = self.ask(client, handshake)
        assert answer.startswith(bytes.fromhex("fe ca 03 09 00 00 00 00")), answer
        self._sessions[client] = int.from_bytes(answer[8:16], "little")
        self.house.clock.advance(cafe_wire.GAP)
        return client

    def publisher(self, topic: str = TOPIC) -> Client:
        return self._shake(cafe_wire.hs_pub(self._channel(OTHER), b"alice"))

    def publish(self, client: Client, *payloads: bytes, topic: str = TOPIC) -> bytes:
        return cafe_wire.publish(self._channel(topic), *payloads)

    def listener(self) -> Client:
        return self._shake(cafe_wire.hs_sub(b"", b"bob"))

    def subscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        return cafe_wire.subscribe(self._channel(topic))

    def unsubscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        return cafe_wire.unsubscribe(self._channel(topic))

    def questions(self, client: Client) -> Mapping[str, bytes]:
        return {"ping": cafe_wire.PING, "unknown channel": cafe_wire.publish(3, b"x")}

    def refused(self, reason: str, topic: str = TOPIC) -> bytes:
        return cafe_wire.error(self._codes[reason])

    def revoked(self) -> bytes:
        return cafe_wire.error(8)

    def over_quota_reply(self) -> bytes:
        return cafe_wire.error(4)

    def malformed(self) -> tuple[bytes, bytes, bool]:
        return b"\xfe\xcb\x10\0\0\0\0", cafe_wire.error(7), True

    def payloads(self, data: bytes) -> Iterator[bytes]:
        yield from cafe_wire.payloads(data)

    def resume(self, client: Client) -> Client:
        name = cafe_wire.resume(b"bob", self._sessions[client])
        return self._shake(cafe_wire.hs_sub(b"", name))

    def attempts(self, topic: str = TOPIC) -> Mapping[str, Callable[[], bytes]]:
        channel = self._channel(topic)

        def shake(handshake: bytes) -> bytes:
            answer = self.ask(self.connect(), handshake)
            return b"" if answer == cafe_wire.ack(0, status=8) else answer

        return {
            "handshake as publisher": lambda: shake(cafe_wire.hs_pub(channel)),
            "handshake as subscriber": lambda: shake(cafe_wire.hs_sub(bytes([2, channel]))),
        }
