"""Floods, and readers that do not read in time."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tests.integration.clients import Cafe, Frame, publish, text

SIZE = 32 * 1024
MIB = 1024 * 1024
# More than the buffers of the sockets and the broker together.
FLOOD = 96 * MIB // SIZE


def numbered(first: int, count: int) -> Iterator[bytes]:
    """Return PUBLISH frames of SIZE bytes that begin with their number."""
    for number in range(first, first + count):
        yield publish(1, struct.pack("<Q", number) + bytes(SIZE - 8))


def numbers(frames: list[Frame]) -> list[int]:
    """Return the numbers in MESSAGE frames."""
    return [struct.unpack_from("<Q", text(f))[0] for f in frames]


def read_numbers(client: Cafe, count: int) -> list[int]:
    """Read this number of MESSAGE frames and return their numbers."""
    return [numbers([client.receive()])[0] for _ in range(count)]


def flood(client: Cafe, first: int = 0) -> None:
    """Send all messages from ``first`` on and wait until they are handled."""
    for each in numbered(first, FLOOD - first):
        client.send(each)
    assert client.sync() == []


def send_until_blocked(client: Cafe) -> tuple[int, bytes]:
    """Send numbered messages until the broker reads nothing for two seconds. Return the number of
    the incomplete message and the rest of its frame.
    """
    client.sock.settimeout(2)
    for number, each in enumerate(numbered(0, FLOOD)):
        view = memoryview(each)
        while view:
            try:
                view = view[client.sock.send(view) :]
            except TimeoutError:
                client.sock.settimeout(60)
                return number, bytes(view)
    raise AssertionError("it was never blocked")
