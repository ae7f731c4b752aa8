"""The driver of rheos."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import ClassVar

from tests.contract.drivers.base import TOPIC, Driver
from tests.unit import rheos_wire
from tests.unit.streams import Client, House


class Rheos(Driver):
    """Each client has its own id."""

    name = "rheos"
    limit = 65_535

    _numbers: ClassVar = count(1)

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._ids: dict[Client, bytes] = {}

    def connect(self) -> Client:
        client = super().connect()
        self._ids[client] = next(self._numbers).to_bytes(16, "big")
        return client

    def open(self, topic: str = TOPIC) -> None:
        client = self.connect()
        answer = self.ask(client, rheos_wire.create(self._ids[client], topic.encode()))
        assert answer in (rheos_wire.topic_ack(topic), rheos_wire.FAILED)

    def publisher(self, topic: str = TOPIC) -> Client:
        return self.connect()

    def publish(self, client: Client, *payloads: bytes, topic: str = TOPIC) -> bytes:
        return rheos_wire.publish(self._ids[client], *payloads, name=topic.encode())

    def subscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        return rheos_wire.subscribe(self._ids[client], topic.encode())

    def unsubscribe(self, client: Client, topic: str = TOPIC) -> None:
        return None

    def questions(self, client: Client) -> Mapping[str, bytes]:
        return {
            "create": rheos_wire.create(self._ids[client], TOPIC.encode()),
            "message to nowhere": self.publish(client, b"x", topic="nowhere"),
            "subscribe nowhere": self.subscribe(client, "nowhere"),
        }

    def accepted(self, answer: bytes, number: int = 1) -> None:
        assert len(rheos_wire.message_ids(answer)) == number

    def subscribed(self, topic: str) -> bytes:
        return rheos_wire.topic_ack(topic)

    def refused(self, reason: str, topic: str = TOPIC) -> bytes:
        return rheos_wire.FAILED

    def over_quota_reply(self) -> bytes:
        return rheos_wire.FAILED

    def malformed(self) -> tuple[bytes, bytes, bool]:
        return b"\xfb" + bytes(21), rheos_wire.FAILED, True

    def too_large(self, client: Client) -> bytes:
        """The length of the data has 16 bits, so a longer body is malformed."""
        whole = self.publish(client, b"x" * self.limit)
        length = int.from_bytes(whole[1:5], "little") + 1
        return self.ask(client, whole[:1] + length.to_bytes(4, "little") + whole[5:] + b"x")

    def payloads(self, data: bytes) -> Iterator[bytes]:
        while data:
            assert data[0] == 0x15, data
            end = 21 + int.from_bytes(data[1:5], "little")
            assert len(data) >= end
            yield data[21:end]
            data = data[end:]

    def resume(self, client: Client) -> Client:
        again = self.connect()
        self._ids[again] = self._ids[client]
        # The id in a request identifies the client.
        name = f"something else {next(self._numbers)}"
        answer = self.ask(again, rheos_wire.create(self._ids[again], name.encode()))
        assert answer == rheos_wire.topic_ack(name)
        return again

    def attempts(self, topic: str = TOPIC) -> Mapping[str, Callable[[], bytes]]:
        def create() -> bytes:
            client = self.connect()
            answer = self.ask(client, rheos_wire.create(self._ids[client], topic.encode()))
            return b"" if answer == rheos_wire.FAILED else answer

        return {"create": create}
