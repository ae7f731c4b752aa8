"""WebSocket clients in memory: the frames are those of the client's side of ``websockets``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.http11 import Response
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from pubsub.http_api.websocket.websocket_frames import SUBPROTOCOL
from tests.unit.web import WebHouse

URL = "ws://localhost/v1/ws"


class SocketClient:
    """A client of the subprotocol; ``connect`` is its first request."""

    def __init__(
        self,
        house: WebHouse,
        url: str = URL,
        origin: str | None = None,
        protocol: str = SUBPROTOCOL,
        host: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.house = house
        self.client = house.connect() if host is None else house.connect(host)
        self.stream = self.client.stream
        self.frames = ClientProtocol(
            parse_uri(url),
            origin=None if origin is None else Origin(origin),
            subprotocols=[Subprotocol(protocol)],
        )
        self.response: Response | None = None
        self.binary: list[bytes] = []
        self.pings = 0
        self._numbers = iter(range(1, 10_000))
        handshake = self.frames.connect()
        handshake.headers.update(headers or {})
        self.frames.send_request(handshake)
        self.push()
        self.pull()

    def push(self) -> None:
        """Send the output of the frames."""
        for data in self.frames.data_to_send():
            if data:
                self.client.send(data)

    def pull(self) -> list[dict[str, Any]]:
        """Return the objects that have arrived in text frames; keep the others in ``binary``."""
        self.house.clock.advance(0)
        if self.stream.received:
            self.frames.receive_data(bytes(self.stream.received))
            self.stream.received.clear()
        found = []
        for event in self.frames.events_received():
            if isinstance(event, Response):
                self.response = event
                continue
            assert not hasattr(event, "method")
            if event.opcode is Opcode.TEXT:
                found.append(json.loads(bytes(event.data)))
            elif event.opcode is Opcode.BINARY:
                self.binary.append(bytes(event.data))
            elif event.opcode is Opcode.PING:
                self.pings += 1
        return found

    def send(self, op: str, **members: object) -> int:
        """Send a request; return its id."""
        number = next(self._numbers)
        self.frames.send_text(json.dumps({"id": number, "op": op, **members}).encode())
        self.push()
        return number

    def send_binary(self, payload: bytes, **members: object) -> int:
        """Send a request in a binary frame."""
        number = next(self._numbers)
        head = json.dumps({"id": number, **members}).encode()
        self.frames.send_binary(len(head).to_bytes(4, "big") + head + payload)
        self.push()
        return number

    def ask(self, op: str, **members: object) -> dict[str, Any]:
        """Send a request and return the members of its answer."""
        number = self.send(op, **members)
        (answer,) = [one for one in self.pull() if one.get("id") == number]
        ok: dict[str, Any] = answer["ok"]
        return ok

    def refused(self, op: str, **members: object) -> str:
        """Send a request and return the code of its error."""
        number = self.send(op, **members)
        (answer,) = [one for one in self.pull() if one.get("id") == number]
        code: str = answer["error"]["code"]
        return code

    def values(self) -> list[str]:
        """Return the payloads of the messages that have arrived."""
        return [one["message"]["value"] for one in self.pull() if "message" in one]

    @property
    def close_code(self) -> int | None:
        """The code of the close that has arrived."""
        self.pull()
        return None if self.frames.close_rcvd is None else self.frames.close_rcvd.code

    @property
    def close_reason(self) -> str:
        """The reason of the close that has arrived."""
        return "" if self.frames.close_rcvd is None else self.frames.close_rcvd.reason


def connected(house: WebHouse, **members: object) -> SocketClient:
    """Return a client that has connected."""
    client = SocketClient(house)
    client.ask("connect", **members)
    return client


def request_of(topics: list[str], sent: list[tuple[str, bytes]]) -> dict[str, Any]:
    """Return the members of a request with these messages."""
    return {
        "op": "publish",
        "topics": topics,
        "indexes": [topics.index(topic) for topic, _ in sent],
        "sizes": [len(payload) for _, payload in sent],
    }


def mixed(client: SocketClient, topics: list[str], sent: list[tuple[str, bytes]]) -> Any:
    """Return the reply to a request with messages of several topics."""
    client.send_binary(b"".join(payload for _, payload in sent), **request_of(topics, sent))
    (reply,) = client.pull()
    return reply
