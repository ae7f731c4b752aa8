"""The driver of fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from tests.contract.drivers.base import (
    NOT_AUTHORIZED,
    NOT_FOUND,
    RATE_LIMITED,
    TOO_LARGE,
    TOPIC,
    WRONG_KEY,
    Driver,
)
from tests.unit import fast_wire
from tests.unit.streams import Client, House


class Fast(Driver):
    """Clients whose tokens hold ``key``: the topic's key, unless they are meant to fail."""

    name = "fast"
    closes = True
    limit = 1_048_576
    conceals = False
    _codes: ClassVar = {
        NOT_AUTHORIZED: fast_wire.NO_PERMISSION, WRONG_KEY: fast_wire.WRONG_KEY,
        NOT_FOUND: fast_wire.NO_TOPIC, TOO_LARGE: fast_wire.TOO_LARGE,
        RATE_LIMITED: fast_wire.RATE_LIMITED,
    }  # fmt: skip

    def __init__(self, house: House, key: str = "k1") -> None:
        super().__init__(house)
        self.token = fast_wire.grant(key=key)

    def open(self, topic: str = TOPIC) -> None:
        assert self.ask(self.connect(), fast_wire.create(self.token, topic)) == b""

    def publisher(self, topic: str = TOPIC) -> Client:
        return self.connect()

    def publish(self, client: Client, *payloads: bytes, topic: str = TOPIC) -> bytes:
        return fast_wire.publish(self.token, *payloads, topic=fast_wire.topic_id(topic))

    def subscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        return fast_wire.subscribe(self.token, fast_wire.topic_id(topic))

    def unsubscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        return fast_wire.unsubscribe(self.token, fast_wire.topic_id(topic))

    def questions(self, client: Client) -> Mapping[str, bytes]:
        return {"unknown topic": self.subscribe(client, "nowhere")}

    def refused(self, reason: str, topic: str = TOPIC) -> bytes:
        return fast_wire.error(0x03, self._codes[reason], fast_wire.topic_id(topic))

    def not_subscribed(self, reason: str, topic: str = TOPIC) -> bytes:
        return fast_wire.error(0x02, self._codes[reason], fast_wire.topic_id(topic))

    def over_quota_reply(self) -> bytes:
        return fast_wire.error(0, fast_wire.RATE_LIMITED, 0)

    def malformed(self) -> tuple[bytes, bytes, bool]:
        return b"\xff", fast_wire.error(0xFF, fast_wire.INVALID, 0), True

    def payloads(self, data: bytes) -> Iterator[bytes]:
        while data:
            assert data[0] == 0x04, data
            end = 9 + int.from_bytes(data[5:9], "big")
            assert len(data) >= end
            yield data[9:end]
            data = data[end:]

    def attempts(self, topic: str = TOPIC) -> Mapping[str, Callable[[], bytes]]:
        number = fast_wire.topic_id(topic)

        def create() -> bytes:
            code = fast_wire.EXISTS if topic == TOPIC else fast_wire.NO_PERMISSION
            answer = self.ask(self.connect(), fast_wire.create(self.token, topic))
            return b"" if answer == fast_wire.error(0x01, code, number) else answer

        def rotate() -> bytes:
            wanted = fast_wire.error(0x07, fast_wire.WRONG_KEY, number)
            answer = self.ask(self.connect(), fast_wire.rotate(self.token, b"mine", number))
            return b"" if answer == wanted else answer

        return {"create": create, "rotate": rotate}
