"""Small blocking clients of cafe and nsd, made of sockets, struct and json."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import struct
from typing import Any, NamedTuple, TypeVar

from tests.integration.broker import HOST, TIMEOUT, Broker

HEADER = struct.Struct("<HBI")
HANDSHAKE_PUB, HANDSHAKE_SUB, HANDSHAKE_ACK, DISCONNECT = 0x01, 0x02, 0x03, 0x04
PUBLISH, SUBSCRIBE, UNSUBSCRIBE, MESSAGE = 0x10, 0x11, 0x12, 0x13
PING, PONG, ERROR = 0x20, 0x21, 0xFF
# The longest message that fits both PUBLISH and MESSAGE.
LONGEST = 1_048_576 - 9
_Self = TypeVar("_Self", bound="Client")


class Frame(NamedTuple):
    """A received cafe frame."""

    opcode: int
    payload: bytes


def frame(opcode: int, payload: bytes = b"") -> bytes:
    """Return a cafe frame."""
    return HEADER.pack(0xCAFE, opcode, len(payload)) + payload


def publish(channel: int, message: bytes) -> bytes:
    """Return a PUBLISH frame."""
    return frame(PUBLISH, bytes([channel]) + message)


def handshake_pub(channel: int = 1, client: bytes = b"") -> bytes:
    """Return a HANDSHAKE_PUB frame."""
    return frame(HANDSHAKE_PUB, bytes([channel, len(client)]) + client)


def handshake_sub(channels: bytes = b"\x01", client: bytes = b"") -> bytes:
    """Return a HANDSHAKE_SUB frame."""
    return frame(HANDSHAKE_SUB, bytes([len(channels)]) + channels + bytes([len(client)]) + client)


def split(data: bytes) -> list[Frame]:
    """Return the frames of ``data``, which must be complete."""
    frames: list[Frame] = []
    while data:
        magic, opcode, length = HEADER.unpack_from(data)
        assert magic == 0xCAFE
        assert len(data) >= HEADER.size + length
        frames.append(Frame(opcode, data[HEADER.size : HEADER.size + length]))
        data = data[HEADER.size + length :]
    return frames


def text(message: Frame) -> bytes:
    """Return the payload of a MESSAGE frame."""
    assert message.opcode == MESSAGE, message
    return message.payload[9:]


class Client:
    """A connected socket with a buffer, for use as a context manager."""

    def __init__(self, port: int | str, receive_buffer: int = 0) -> None:
        family = socket.AF_UNIX if isinstance(port, str) else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        if receive_buffer:
            # Before connecting, so that the advertised window stays small.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if family == socket.AF_INET:
            # Otherwise the second of two small writes would wait for a delayed acknowledgment.
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.connect(port if isinstance(port, str) else (HOST, port))
        self._buffer = bytearray()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close in order."""
        self.sock.close()

    def reset(self) -> None:
        """End the connection with a reset instead of an orderly close."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def send(self, *parts: bytes) -> None:
        """Send all data."""
        self.sock.sendall(b"".join(parts))

    def _more(self) -> None:
        data = self.sock.recv(256 * 1024)
        if not data:
            raise EOFError
        self._buffer += data

    def _peek(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        return bytes(self._buffer[:count])

    def _take(self, count: int) -> bytes:
        data = self._peek(count)
        del self._buffer[:count]
        return data

    def at_end(self) -> bool:
        """Return whether the connection ends here, in order and with nothing more to read."""
        if self._buffer:
            return False
        return self.sock.recv(1) == b""


class Cafe(Client):
    """A cafe client."""

    session = 0

    @classmethod
    def publisher(cls, broker: Broker, channel: int = 1, client: bytes = b"") -> Cafe:
        """Return a publisher whose handshake is acknowledged."""
        made = cls(broker.port("cafe"))
        made.shake(handshake_pub(channel, client))
        return made

    @classmethod
    def subscriber(
        cls,
        broker: Broker,
        channels: bytes = b"\x01",
        client: bytes = b"",
        receive_buffer: int = 0,
    ) -> Cafe:
        """Return a subscriber whose handshake is acknowledged."""
        made = cls(broker.port("cafe"), receive_buffer)
        made.shake(handshake_sub(channels, client))
        return made

    def shake(self, handshake: bytes) -> None:
        """Send a handshake and read its acknowledgment."""
        self.send(handshake)
        opcode, payload = self.receive()
        assert (opcode, payload[0]) == (HANDSHAKE_ACK, 0)
        (self.session,) = struct.unpack("<xQ", payload)
        assert self.session

    def receive(self) -> Frame:
        """Return the next frame. Raises EOFError."""
        magic, opcode, length = HEADER.unpack(self._peek(HEADER.size))
        assert magic == 0xCAFE
        return Frame(opcode, self._take(HEADER.size + length)[HEADER.size :])

    def receive_texts(self, count: int) -> list[bytes]:
        """Return the payloads of the next ``count`` frames, all MESSAGE."""
        return [text(self.receive()) for _ in range(count)]

    def sync(self) -> list[Frame]:
        """Send PING and return the frames before its PONG. The broker has then handled all input
        before. (PONG overtakes a backlog.)
        """
        self.send(frame(PING))
        frames: list[Frame] = []
        while True:
            received = self.receive()
            if received.opcode == PONG:
                return frames
            frames.append(received)

    def receive_rest(self) -> list[Frame]:
        """Return every frame up to the end of the connection, which must not be within a frame."""
        frames: list[Frame] = []
        with contextlib.suppress(EOFError):
            while True:
                frames.append(self.receive())
        assert not self._buffer, "a frame was cut"
        return frames

    def receive_until_reset(self) -> list[Frame]:
        """Return every complete frame before the reset of the connection, which must follow."""
        frames: list[Frame] = []
        try:
            while True:
                frames.append(self.receive())
        except ConnectionResetError:
            return frames


class Nsd(Client):
    """An nsd client; ``in_base64`` chooses the dialect of ``ask``."""

    def __init__(self, port: int | str, in_base64: bool = False, receive_buffer: int = 0) -> None:
        super().__init__(port, receive_buffer)
        self.in_base64 = in_base64

    @classmethod
    def to(cls, broker: Broker, in_base64: bool = False, receive_buffer: int = 0) -> Nsd:
        """Return a client connected to a broker's first nsd listener."""
        return cls(broker.port("nsd"), in_base64, receive_buffer)

    def line(self) -> bytes:
        """Return the next line without its end. Raises EOFError."""
        at = 0
        while (end := self._buffer.find(b"\n", at)) < 0:
            at = len(self._buffer)
            self._more()
        return self._take(end + 1)[:-1]

    def answer(self) -> dict[str, Any]:
        """Return the next response."""
        line = self.line()
        if self.in_base64:
            assert not line.startswith(b"{")
            line = base64.b64decode(line, validate=True)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def put(self, kind: str, identity: str, **fields: object) -> None:
        """Send a request."""
        request = {"_class": f"{kind}Request", "identity": identity, **fields}
        line = json.dumps(request).encode()
        self.send((base64.b64encode(line) if self.in_base64 else line) + b"\n")

    def ask(self, kind: str, identity: str, **fields: object) -> dict[str, Any]:
        """Send a request and return its response."""
        self.put(kind, identity, **fields)
        return self.answer()

    def do(self, kind: str, identity: str, **fields: object) -> None:
        """Send a request that must succeed."""
        assert self.ask(kind, identity, **fields) == {"_class": "SuccessResponse"}

    def refused(self, kind: str, identity: str, **fields: object) -> str:
        """Send a request that must fail and return the text of the error."""
        answer = self.ask(kind, identity, **fields)
        assert answer["_class"] == "ErrorResponse"
        return str(answer["error"])

    def get(self, identity: str, after: int = 0) -> list[dict[str, Any]]:
        """Return the messages of a Get."""
        answer = self.ask("Get", identity, after=after)
        assert answer["_class"] == "MessageListResponse"
        messages: list[dict[str, Any]] = answer["messages"]
        return messages


def message(body: str, sender: str = "tester", **extra: object) -> dict[str, object]:
    """Return the ``message`` of a PublishRequest."""
    return {"_class": "Message", "from": sender, "when": 0, "body": body, **extra}
