"""A follower over HTTP."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.web import WebClient, WebHouse

PATH = "/v1/topics/a/messages"


class Follower:
    """A client that follows, with the response so far."""

    def __init__(self, house: WebHouse, target: str = PATH + "?follow=1", **given: Any) -> None:
        self.client: WebClient = house.connect()
        self.stream = self.client.stream
        self.client.ask("GET", target, **given)
        self.complete = False
        self._house = house
        self._body = b""
        self._rest = b""
        self.head = b""

    def body(self) -> bytes:
        """Return the body that has arrived since the last call."""
        self._house.clock.advance(0)
        self._rest += bytes(self.stream.received)
        self.stream.received.clear()
        if not self.head:
            self.head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        found = b""
        while b"\r\n" in self._rest:
            size, _, rest = self._rest.partition(b"\r\n")
            length = int(size, 16)
            if len(rest) < length + 2:
                break
            assert rest[length : length + 2] == b"\r\n"
            found, self._rest = found + rest[:length], rest[length + 2 :]
            if not length:
                self.complete = True
                break
        return found

    def rows(self) -> list[Any]:
        """Return the lines of JSON that have arrived."""
        return [json.loads(line) for line in self.body().splitlines() if line]

    def values(self) -> list[str]:
        """Return the payloads that have arrived."""
        return [row["value"] for row in self.rows() if "value" in row]

    def events(self) -> list[dict[str, str]]:
        """Return the events that have arrived, with their fields."""
        blocks = self.body().decode().split("\n\n")
        return [dict(line.split(": ", 1) for line in b.split("\n")) for b in blocks if b]
