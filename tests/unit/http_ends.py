"""Both ends of the HTTP API's wire of the client library: a broker in memory, and one by hand."""

from __future__ import annotations

import json
from typing import Any

from websockets.frames import Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pubsub.client.http_wire import HttpWire
from pubsub.http_api.websocket.websocket_frames import SUBPROTOCOL
from pubsub.wire.client_events import Opened, WireEvent
from pubsub.wire.client_wire import Role, WireConnection, WireOptions
from tests.unit.web import WebHouse

EPOCH = "1-abc"


def make(
    role: Role,
    token: str | None = None,
    client_id: bytes = b"",
    session: object = None,
    host: str = "localhost",
) -> WireConnection:
    """Return a connection that is not open."""
    options = WireOptions(client_id, token, host=host, port=7080, values=make_values())
    return HttpWire(options).connect(role, session)


def make_values(limit: int = 1024 * 1024) -> dict[str, Any]:
    """Return the parameters of a broker with this ``max-message``."""
    return {"max-message": limit}


class HttpPair:
    """A connection and a broker; at most ``piece`` bytes arrive at once."""

    def __init__(self, house: WebHouse, connection: WireConnection, piece: int = 65_536) -> None:
        self.house = house
        self.connection = connection
        self.far = house.connect()
        self._piece = piece
        self._events = connection.open()

    def take(self) -> list[WireEvent]:
        """Return the events since the last call, after all has been transferred."""
        moved = True
        while moved:
            out = self.connection.take_output()
            if out:
                self.far.send(out)
            self.house.clock.advance(0)
            back = bytes(self.far.stream.received)
            self.far.stream.received.clear()
            for at in range(0, len(back), self._piece):
                self._events += self.connection.receive(back[at : at + self._piece])
            moved = bool(out or back)
        events, self._events = self._events, []
        return events


class HandMade:
    """A connection and a broker's end whose output the test chooses.

    ``request`` is that of the handshake.
    """

    def __init__(self, connection: WireConnection) -> None:
        self.connection = connection
        self.server = ServerProtocol(subprotocols=[Subprotocol(SUBPROTOCOL)])
        assert connection.open() == []
        self.server.receive_data(connection.take_output())
        (request,) = self.server.events_received()
        assert isinstance(request, Request)
        self.request = request

    def accept(self, protocol: str | None = SUBPROTOCOL) -> bytes:
        """Return the reply that upgrades the connection, with this subprotocol."""
        response = self.server.accept(self.request)
        del response.headers["Sec-WebSocket-Protocol"]
        if protocol is not None:
            response.headers["Sec-WebSocket-Protocol"] = protocol
        self.server.send_response(response)
        return self.sent()

    def sent(self) -> bytes:
        """Return the output of the broker's end."""
        return b"".join(self.server.data_to_send())

    def requests(self) -> list[Any]:
        """Return the requests that have arrived, and the payloads of binary ones."""
        self.server.receive_data(self.connection.take_output())
        found: list[Any] = []
        for one in self.server.events_received():
            assert isinstance(one, Frame)
            data = bytes(one.data)
            if one.opcode.name == "BINARY":
                end = 4 + int.from_bytes(data[:4], "big")
                found.append((json.loads(data[4:end]), data[end:]))
            elif one.opcode.name == "TEXT":
                found.append(json.loads(data))
        return found

    def text(self, value: object) -> bytes:
        """Return the frame of an object."""
        self.server.send_text(json.dumps(value).encode())
        return self.sent()

    def ok(self, number: int, **members: object) -> bytes:
        """Return a reply."""
        return self.text({"id": number, "ok": members})

    def error(self, number: int | None, code: str, message: str = "", **members: object) -> bytes:
        """Return a refusal."""
        return self.text({"id": number, "error": {"code": code, "message": message, **members}})

    def message(self, topic: str, offset: int, payload: bytes, **members: object) -> bytes:
        """Return the binary frame of a message of bob."""
        row = {"offset": offset, "timestamp": 7, "topic": topic, "key": "Ym9i", **members}
        head = json.dumps({"message": row}).encode()
        self.server.send_binary(len(head).to_bytes(4, "big") + head + payload)
        return self.sent()

    def batch(self, payloads: bytes, **members: object) -> bytes:
        """Return the binary frame of several messages."""
        head = json.dumps({"batch": members}).encode()
        self.server.send_binary(len(head).to_bytes(4, "big") + head + payloads)
        return self.sent()

    def close(self, code: int | None, reason: str = "") -> bytes:
        """Return a close."""
        self.server.send_close(code, reason)
        return self.sent()

    def receive(self, *parts: bytes) -> list[WireEvent]:
        """Return the events of these bytes."""
        return self.connection.receive(b"".join(parts))


def upgraded(
    role: Role, session: object = None, resumed: bool | None = None, **limits: object
) -> HandMade:
    """Return both ends after the handshake and the first request, whose reply has ``limits``.

    ``resumed`` is whether the session continues; it does, unless it is of another broker.
    """
    continues = session is not None if resumed is None else resumed
    far = HandMade(make(role, session=session))
    assert far.receive(far.accept()) == []
    assert [one["op"] for one in far.requests()] == ["connect"]
    assert far.receive(far.ok(1, epoch=EPOCH, **limits)) == [Opened(continues)]
    return far
