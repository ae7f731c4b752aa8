"""Captures of TCP segments and UDP datagrams, as files of libpcap with packets of raw IPv4."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

_RAW_IP = 101
SERVER = "127.0.0.1"
_SERVER = 0x7F000001
_FIRST_CLIENT = 0x0A000001
_CLIENT_PORT = 50_000
_TCP, _UDP = 6, 17
_ACK_PSH = 0x18
MAX_SEGMENT = 65_000


class Capture:
    """A capture in memory. Every stream has a client address of its own."""

    def __init__(self, snapshot: int = 262_144) -> None:
        self._snapshot = snapshot
        self._packets: list[bytes] = []
        self._clients = 0

    def __bytes__(self) -> bytes:
        head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, self._snapshot, _RAW_IP)
        return head + b"".join(self._packets)

    def client(self) -> int:
        """Return the address of a new client."""
        self._clients += 1
        return _FIRST_CLIENT + self._clients - 1

    def stream(self, port: int, segments: Iterable[tuple[bool, bytes]]) -> int:
        """Add a TCP stream: segments from the client (True) or the broker; return the client."""
        client = self.client()
        next_at = {True: 1, False: 1}
        for from_client, data in segments:
            for start in range(0, len(data), MAX_SEGMENT):
                piece = data[start : start + MAX_SEGMENT]
                source, target = (_CLIENT_PORT, port) if from_client else (port, _CLIENT_PORT)
                sequence, acknowledged = next_at[from_client], next_at[not from_client]
                head = struct.pack(
                    ">HHIIBBHHH",
                    *(source, target, sequence, acknowledged, 5 << 4, _ACK_PSH, 65_535, 0, 0),
                )
                self._add(client, from_client, _TCP, head + piece)
                next_at[from_client] += len(piece)
        return client

    def datagrams(self, port: int, datagrams: Iterable[tuple[bool, bytes]]) -> int:
        """Add UDP datagrams from one client (True) or to it; return the client."""
        client = self.client()
        for from_client, data in datagrams:
            source, target = (_CLIENT_PORT, port) if from_client else (port, _CLIENT_PORT)
            head = struct.pack(">HHHH", source, target, 8 + len(data), 0)
            self._add(client, from_client, _UDP, head + data)
        return client

    def _add(self, client: int, from_client: bool, protocol: int, payload: bytes) -> None:
        addresses = (client, _SERVER) if from_client else (_SERVER, client)
        size = 20 + len(payload)
        packet = struct.pack(">BBHHHBBHII", 0x45, 0, size, 0, 0, 64, protocol, 0, *addresses)
        packet += payload
        number = len(self._packets)
        kept = packet[: self._snapshot]
        seconds, fraction = divmod(number, 1000)
        self._packets.append(
            struct.pack("<IIII", 1_700_000_000 + seconds, 1000 * fraction, len(kept), size) + kept
        )


def cut_everywhere(data: bytes) -> list[Sequence[bytes]]:
    """Return ``data`` as segments: cut once at each place, and into single bytes."""
    once = [(data[:at], data[at:]) for at in range(1, len(data))]
    return [*once, tuple(data[at : at + 1] for at in range(len(data)))]


def address(client: int) -> str:
    """Return the text of an address."""
    return ".".join(str(byte) for byte in client.to_bytes(4))
