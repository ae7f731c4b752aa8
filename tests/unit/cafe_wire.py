"""cafe frames made by hand, and a broker with a cafe listener."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.fakes import drawing
from tests.unit.streams import Client, House, ProtocolHouse

PING = bytes.fromhex("fe ca 20 00 00 00 00")
PONG = bytes.fromhex("fe ca 21 00 00 00 00")
DISCONNECT = bytes.fromhex("fe ca 04 00 00 00 00")
# 1,700,000,000,000 ms, the start of the fake clock.
START_MS = bytes.fromhex("00 68 e5 cf 8b 01 00 00")
GAP = 0.02
"""Seconds that messages are held back after the acknowledgment."""


def frame(opcode: int, payload: bytes = b"") -> bytes:
    """Return a frame: magic, opcode, length, payload."""
    return b"\xfe\xca" + bytes([opcode]) + len(payload).to_bytes(4, "little") + payload


def hs_pub(channel: int, client_id: bytes = b"") -> bytes:
    return frame(0x01, bytes([channel, len(client_id)]) + client_id)


def hs_sub(channels: bytes = b"", client_id: bytes = b"") -> bytes:
    return frame(0x02, bytes([len(channels)]) + channels + bytes([len(client_id)]) + client_id)


def ack(session: int, status: int = 0) -> bytes:
    return frame(0x03, bytes([status]) + session.to_bytes(8, "little"))


def publish(channel: int, *payloads: bytes) -> bytes:
    return b"".join(frame(0x10, bytes([channel]) + payload) for payload in payloads)


def subscribe(channel: int) -> bytes:
    return frame(0x11, bytes([channel]))


def unsubscribe(channel: int) -> bytes:
    return frame(0x12, bytes([channel]))


def message(channel: int, *payloads: bytes, at: bytes = START_MS) -> bytes:
    return b"".join(frame(0x13, bytes([channel]) + at + payload) for payload in payloads)


def error(code: int) -> bytes:
    return frame(0xFF, bytes([code]))


def resume(name: bytes, session: int) -> bytes:
    """Return the ClientID that resumes a session."""
    return name + b";resume=%016x" % session


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """Return the opcode and payload of every frame in ``data``, which must be complete."""
    found = []
    while data:
        assert data[:2] == b"\xfe\xca"
        end = 7 + int.from_bytes(data[3:7], "little")
        assert len(data) >= end
        found.append((data[2], data[7:end]))
        data = data[end:]
    return found


def payloads(data: bytes) -> list[bytes]:
    """Return the payloads in ``data``, which must be MESSAGE frames."""
    assert all(opcode == 0x13 for opcode, _ in frames(data))
    return [payload[9:] for _, payload in frames(data)]


class Cafe(ProtocolHouse):
    """A broker with one cafe listener; its sessions have the ids 1, 2, 3 and so on."""

    served = "cafe"

    def __init__(self, top: Mapping[str, object] | None = None, **options: Any) -> None:
        super().__init__(top, draw=drawing(0, *range(1, 1000)), **options)

    def publisher(self, channel: int = 1, name: bytes = b"alice") -> Client:
        """Return a publisher whose handshake is acknowledged."""
        client = self.connect("cafe")
        client.send(hs_pub(channel, name))
        (opcode, payload), *rest = frames(client.take())
        assert (opcode, payload[0], rest) == (0x03, 0, [])
        return client

    def subscriber(self, channels: bytes = b"\x01", name: bytes = b"bob") -> Client:
        """Return an acknowledged subscriber whose gap has passed."""
        client = self.connect("cafe")
        client.send(hs_sub(channels, name))
        (opcode, payload), *rest = frames(client.take())
        assert (opcode, payload[0], rest) == (0x03, 0, [])
        self.clock.advance(GAP)
        return client


def handshaken(house: House, handshake: bytes) -> Client:
    """Return a client whose handshake is acknowledged and whose gap has passed."""
    client = house.connect("cafe")
    client.send(handshake)
    house.clock.advance(GAP)
    client.take()
    return client
