"""Sockets in memory for the blocking publishers: connected to a broker, or scripted."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire.blocking_publisher import Address
from tests.unit.streams import Client, House

ADDRESS = Address("broker.example", 7070)


class FakeSocket:
    """The methods of a socket that a blocking publisher uses. ``sent`` has all bytes sent."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.timeout: float | None = None
        self.options: list[tuple[int, int, int]] = []
        self.closed = False

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options.append((level, option, value))

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds

    def close(self) -> None:
        self.closed = True


class ScriptedSocket(FakeSocket):
    """``recv`` returns ``replies`` in turn; an exception among them is raised."""

    def __init__(self, replies: Iterable[bytes | OSError] = (), fails: bool = False) -> None:
        super().__init__()
        self._replies = iter(replies)
        self._fails = fails

    def sendall(self, data: bytes) -> None:
        if self._fails:
            raise BrokenPipeError("broken pipe")
        self.sent += data

    def recv(self, size: int) -> bytes:
        """See ``socket.socket.recv``: empty bytes, the end, after the last reply."""
        reply = next(self._replies, b"")
        if isinstance(reply, OSError):
            raise reply
        return reply


class HouseSocket(FakeSocket):
    """A connection to a listener of ``house``; ``recv`` returns at most ``piece`` bytes."""

    def __init__(self, house: House, protocol: str, piece: int = 65_536) -> None:
        super().__init__()
        self._house = house
        self._piece = piece
        self._unread = b""
        self.client: Client = house.connect(protocol)

    def sendall(self, data: bytes) -> None:
        self.sent += data
        self.client.send(data)

    def recv(self, size: int) -> bytes:
        """See ``socket.socket.recv``; without data it raises TimeoutError at once."""
        if not self._unread:
            self._house.pump()
            self._unread = self.client.take()
        if not self._unread and not self.client.closed:
            raise TimeoutError("timed out")
        data, self._unread = self._unread[: self._piece], self._unread[self._piece :]
        return data


def connect_to(case: SynchronousTestCase, made: FakeSocket) -> list[tuple[Any, ...]]:
    """Have ``socket.create_connection`` return ``made``; the list has the calls' arguments."""
    calls: list[tuple[Any, ...]] = []

    def create_connection(*given: Any) -> FakeSocket:
        calls.append(given)
        return made

    case.patch(socket, "create_connection", create_connection)
    return calls


def refuse_connections(case: SynchronousTestCase) -> None:
    """Have ``socket.create_connection`` raise ConnectionRefusedError."""

    def create_connection(*given: Any) -> FakeSocket:
        raise ConnectionRefusedError("connection refused")

    made: Callable[..., FakeSocket] = create_connection
    case.patch(socket, "create_connection", made)


class PublisherCase(SynchronousTestCase):
    """Publishers whose socket is ``self.socket``."""

    socket: FakeSocket

    def over(self, house: House, protocol: str, piece: int = 65_536) -> HouseSocket:
        """Have the next publisher connect to a listener of ``house``."""
        made = HouseSocket(house, protocol, piece)
        self.socket = made
        connect_to(self, made)
        return made

    def scripted(self, *replies: bytes | OSError, fails: bool = False) -> ScriptedSocket:
        """Have the next publisher connect to a socket that receives ``replies``."""
        made = ScriptedSocket(replies, fails)
        self.socket = made
        connect_to(self, made)
        return made

    def sent(self) -> bytes:
        """All bytes that were sent."""
        return bytes(self.socket.sent)

    def published(self, house: House, topic: str) -> list[bytes]:
        """Return the payloads of ``topic`` in the history."""
        page = self.successResultOf(house.store.read(0, frozenset([topic]), 2**30))
        return [payload for batch in page.batches for payload in batch.payloads()]
