"""A small protocol based on ``Connection``, with its listener and clients."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import ITCPTransport, ITransport

from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.errors import Refused
from pubsub.interfaces import IStore
from pubsub.wire.connection import Connection
from tests.unit.fakes import clock_at, make_broker, make_listener
from tests.unit.streams import Client, Stream


class Frames(Connection):
    """Frames with a length of ``width`` bytes; each is recorded, and ``!`` stops parsing."""

    width = 1

    def connectionMade(self) -> None:
        self.frames: list[bytes] = []
        self.calls = 0
        self.ends = 0
        super().connectionMade()

    def consume(self, data: bytes) -> tuple[int, int]:
        self.calls += 1
        at = 0
        while at < len(data) and not self.closing:
            start = at + self.width
            if len(data) < start:
                return at, self.width
            need = self.width + int.from_bytes(data[at:start], "big")
            if len(data) - at < need:
                return at, need
            self.frames.append(data[start : at + need])
            at += need
            if self.frames[-1] == b"!":
                break
        return at, 1

    def refusal(self, error: Refused) -> bytes:
        return f"no: {error.reason}".encode()

    def goodbye(self) -> bytes:
        return b"bye"

    def ended(self) -> None:
        self.ends += 1
        if self.outbox is not None:
            self.outbox.shut("disconnected")


class LongFrames(Frames):
    """Frames of up to 4 GiB."""

    width = 4


class Lines(Frames):
    """Lines; a line of more than a thousand bytes is parsed without its end."""

    delimiter = b"\n"

    def consume(self, data: bytes) -> tuple[int, int]:
        self.calls += 1
        *lines, rest = data.split(b"\n")
        self.frames += lines
        return len(data) - len(rest), 1001


def frame(payload: bytes, width: int = 1) -> bytes:
    return len(payload).to_bytes(width, "big") + payload


class Setup:
    """A listener for a connection class, and clients of it."""

    def __init__(
        self,
        kind: type[Frames] = Frames,
        limits: BrokerLimits | None = None,
        store: IStore | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock_at()
        self.broker = make_broker(self.clock, limits, store)
        self.listener = make_listener(self.broker, **settings)
        self._kind = kind

    def connect(
        self,
        peer: object = None,
        provides: tuple[type[ITransport], ...] = (ITCPTransport,),
    ) -> tuple[Client, Frames]:
        address = peer or IPv4Address("TCP", "192.0.2.7", 4711)
        connection = self._kind(self.listener)
        return Client(connection, Stream(self.clock, address, provides), self.clock), connection
