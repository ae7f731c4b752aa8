"""The shell of the blocking clients: a socket, and publishing with proof that it arrived.

Each protocol's ``client.py`` puts its codec into it. For programs without an event loop, such as
the workers of Spark; the broker uses none of this.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from pubsub.errors import PubSubError

_Item = TypeVar("_Item")
_Self = TypeVar("_Self", bound="BlockingPublisher")
_RECEIVE = 65536
_CONNECT_SECONDS = 20.0
# A broker with a slow subscriber keeps its publishers waiting, by default for less than this.
_SECONDS = 120.0
# What is sent before it is confirmed; its answers fit into any socket's buffers.
WINDOW_MESSAGES = 1000
WINDOW_BYTES = 1024 * 1024


class ConnectionBroken(PubSubError):
    """The broker cannot be reached, hung up, or did not answer in time."""

    reason = "connection"


class NotPublished(PubSubError):
    """The broker refused messages, or the protocol cannot carry them."""

    reason = "not-published"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens; ``tls`` encrypts, and checks its certificate by the host's name."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class BlockingStream:
    """A connected socket. All methods raise ConnectionBroken."""

    def __init__(self, address: Address, seconds: float = _SECONDS) -> None:
        self._address = address
        self._data = b""
        self._at = 0
        try:
            self._socket = self._connect(seconds)
        except OSError as error:
            raise self._broken(error) from None

    def _connect(self, seconds: float) -> socket.socket:
        address = self._address
        made = socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
        # Two small writes in a row would otherwise wait for a delayed acknowledgment.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            context = ssl.create_default_context()
            made = context.wrap_socket(made, server_hostname=address.host)
        made.settimeout(seconds)
        return made

    def _broken(self, error: OSError | str) -> ConnectionBroken:
        return ConnectionBroken(f"the broker at {self._address}: {error}")

    def send(self, data: bytes) -> None:
        """All of it."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, decode: Callable[[bytes, int], tuple[_Item, int] | None]) -> _Item:
        """What ``decode(data, at)`` makes of what comes next: an item and where it ends.

        It gives None as long as there is not enough.
        """
        while (found := decode(self._data, self._at)) is None:
            self._data = self._data[self._at :] + self._more()
            self._at = 0
        item, self._at = found
        return item

    def _more(self) -> bytes:
        try:
            data = self._socket.recv(_RECEIVE)
        except OSError as error:
            raise self._broken(error) from None
        if not data:
            raise self._broken("it closed the connection")
        return data

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class BlockingPublisher(ABC):
    """Publishes over one connection; a context manager that closes it.

    What ``add`` was given may be on its way; after ``finish`` the broker has taken all of it, as
    far as the protocol can tell. Both raise ConnectionBroken or NotPublished, after which what
    was not finished may or may not have been published, and the publisher is of no more use.
    """

    protocol: str

    def __init__(self, address: Address) -> None:
        self._address = address
        self._stream: BlockingStream | None = None
        self._window: list[bytes] = []
        self._messages = 0
        self._bytes = 0

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def add(self, topic: str, payload: bytes, sender: bytes | None = None) -> None:
        """Publish a message. Only some protocols can say who its sender is."""
        data = self.encode(topic, payload, sender)
        self._window.append(data)
        self._messages += 1
        self._bytes += len(data)
        if self._messages >= WINDOW_MESSAGES or self._bytes >= WINDOW_BYTES:
            self._flush(last=False)

    def finish(self) -> None:
        """Returns when the broker has taken everything."""
        if self._window or self._stream is not None:
            self._flush(last=True)

    def _flush(self, last: bool) -> None:
        data, count = b"".join(self._window), self._messages
        self._window, self._messages, self._bytes = [], 0, 0
        try:
            self.stream.send(data)
        except ConnectionBroken:
            # It may have said why before it hung up: then that is the error.
            with contextlib.suppress(ConnectionBroken):
                self.confirm(count, last)
            raise
        self.confirm(count, last)

    @property
    def stream(self) -> BlockingStream:
        """The connection, which is made when it is first needed."""
        if self._stream is None:
            self._stream = BlockingStream(self._address)
        return self._stream

    def refused(self, why: str, count: int = 1) -> NotPublished:
        """The error for ``count`` messages that were refused."""
        messages = "a message" if count == 1 else f"{count} messages"
        return NotPublished(f"{self.protocol} at {self._address}: {messages} refused: {why}")

    def impossible(self, why: str) -> NotPublished:
        """The error for what the protocol has no words for."""
        return NotPublished(f"{self.protocol} cannot carry it: {why}")

    @abstractmethod
    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        """What publishes a message, and before it what has to be once for its topic."""

    @abstractmethod
    def confirm(self, count: int, last: bool) -> None:
        """Wait until the ``count`` messages sent since the last call have been taken.

        ``last`` says that there will be no more. Raises NotPublished for those that were not.
        """
