"""The driver of nsd."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, ClassVar

from tests.contract.drivers.base import (
    NOT_AUTHORIZED,
    NOT_FOUND,
    RATE_LIMITED,
    TOO_LARGE,
    TOPIC,
    Driver,
)
from tests.unit import nsd_lines
from tests.unit.streams import Client, House


class Nsd(Driver):
    """The publisher of a channel is the identity of that name; each reader has its own identity."""

    name = "nsd"
    opens = text = polls = True
    limit = 1000
    _words: ClassVar = {
        NOT_AUTHORIZED: "NOT AUTHORIZED: {}", NOT_FOUND: "NO SUCH CHANNEL: {}",
        TOO_LARGE: "MESSAGE TOO BIG: 1001 characters", RATE_LIMITED: "RATE LIMIT EXCEEDED",
    }  # fmt: skip

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._names = count()
        self._seen: dict[Client, tuple[str, int]] = {}

    def open(self, topic: str = TOPIC) -> None:
        assert self.ask(self.connect(), nsd_lines.open_(topic)) == nsd_lines.SUCCESS

    def publisher(self, topic: str = TOPIC) -> Client:
        self.open(topic)
        return self.connect()

    def publish(self, client: Client, *payloads: bytes, topic: str = TOPIC) -> bytes:
        return b"".join(nsd_lines.publish(topic, payload.decode()) for payload in payloads)

    def listener(self) -> Client:
        client = self.connect()
        identity = f"{id(self)}-{next(self._names)}"
        self._seen[client] = identity, self.house.store.next_offset
        return client

    def subscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        return nsd_lines.subscribe(self._seen[client][0], topic)

    def unsubscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        return nsd_lines.unsubscribe(self._seen[client][0], topic)

    def questions(self, client: Client) -> Mapping[str, bytes]:
        return {
            "open": nsd_lines.open_(TOPIC),
            "get": nsd_lines.get("nobody", 0),
            "garbage in base64": base64.b64encode(b"no request") + b"\n",
        }

    def accepted(self, answer: bytes, number: int = 1) -> None:
        assert answer == nsd_lines.SUCCESS * number, answer

    def subscribed(self, topic: str) -> bytes:
        return nsd_lines.SUCCESS

    def refused(self, reason: str, topic: str = TOPIC) -> bytes:
        return nsd_lines.error(self._words[reason].format(topic))

    def over_quota_reply(self) -> bytes:
        return nsd_lines.error("TOO MANY CONNECTIONS")

    def malformed(self) -> tuple[bytes, bytes, bool]:
        return b"garbage\n", nsd_lines.error("INVALID REQUEST: [garbage]"), False

    def messages(self, client: Client) -> list[bytes]:
        identity, after = self._seen[client]
        found = self._get(client, identity, after)
        if found:
            self._seen[client] = identity, found[-1]["when"]
        return [base64.b64decode(m["data"]) if "data" in m else m["body"].encode() for m in found]

    def ask_for_messages(self, client: Client) -> None:
        client.send(nsd_lines.get(*self._seen[client]))

    def remaining(self, client: Client) -> list[bytes]:
        found = json.loads(client.take())["messages"]
        self._seen[client] = self._seen[client][0], found[-1]["when"]
        return [message["body"].encode() for message in found] + self.messages(client)

    def _get(self, client: Client, identity: str, after: int) -> list[dict[str, Any]]:
        client.send(nsd_lines.get(identity, after))
        self.house.pump()
        response = json.loads(client.take())
        assert response["_class"] == "MessageListResponse"
        messages: list[dict[str, Any]] = response["messages"]
        return messages

    def resume(self, client: Client) -> Client:
        again = self.connect()
        self._seen[again] = self._seen[client]
        return again

    def attempts(self, topic: str = TOPIC) -> Mapping[str, Callable[[], bytes]]:
        def open_() -> bytes:
            answer = self.ask(self.connect(), nsd_lines.open_(topic))
            return b"" if answer == self.refused(NOT_AUTHORIZED, topic) else answer

        def history() -> bytes:
            """Read as the identity that opened the channel, which subscribed it."""
            return b"".join(m["body"].encode() for m in self._get(self.connect(), topic, 0))

        return {"open": open_, "history": history}
