"""The base of the blocking clients: a socket, and publishing with confirmation.

Each protocol's ``client.py`` adds its codec. These clients are for programs without an event loop,
such as the workers of Spark. The broker does not use them.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pubsub.errors import PubSubError

_Item = TypeVar("_Item")
_Self = TypeVar("_Self", bound="BlockingPublisher")
_RECEIVE = 65536
_CONNECT_SECONDS = 20.0
# A broker holds publishers for a slow subscriber, by default for less time than this.
_SECONDS = 120.0
# Limits of what is sent before it is confirmed; the replies to it fit into any socket's buffers.
WINDOW_MESSAGES = 1000
WINDOW_BYTES = 1024 * 1024


class ConnectionBroken(PubSubError):
    """The broker cannot be reached, closed the connection, or did not reply in time."""

    reason = "connection"


class NotPublished(PubSubError):
    """The broker refused messages, or the protocol cannot express them."""

    reason = "not-published"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker; with ``tls`` its certificate must be valid for ``host``."""

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
        """Send all of ``data``."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, decode: Callable[[bytes, int], tuple[_Item, int] | None]) -> _Item:
        """Receive until ``decode(data, at)`` returns an item and where it ends; return the item.

        ``decode`` returns None while the data is incomplete.
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
        """Close the connection."""
        self._socket.close()


class BlockingPublisher(ABC):
    """Publishes over one connection; a context manager that closes it.

    Messages given to ``add`` may still be on their way. After ``finish`` the broker has accepted
    all of them, as far as the protocol can confirm that. Both raise ConnectionBroken or
    NotPublished. After an error the messages since the last ``finish`` may or may not have been
    published, and the publisher cannot be used again.
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

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def add(self, topic: str, payload: bytes, sender: bytes | None = None) -> None:
        """Publish a message. Only some protocols can express its sender."""
        data = self.encode(topic, payload, sender)
        self._window.append(data)
        self._messages += 1
        self._bytes += len(data)
        if self._messages >= WINDOW_MESSAGES or self._bytes >= WINDOW_BYTES:
            self._flush(last=False)

    def finish(self) -> None:
        """Return when the broker has accepted all messages."""
        if self._window or self._stream is not None:
            self._flush(last=True)

    def _flush(self, last: bool) -> None:
        data, count = b"".join(self._window), self._messages
        self._window, self._messages, self._bytes = [], 0, 0
        try:
            self.stream.send(data)
        except ConnectionBroken:
            # If the broker sent an error before it closed the connection, that is raised instead.
            with contextlib.suppress(ConnectionBroken):
                self.confirm(count, last)
            raise
        self.confirm(count, last)

    @property
    def stream(self) -> BlockingStream:
        """The connection, which is opened by the first use."""
        if self._stream is None:
            self._stream = BlockingStream(self._address)
        return self._stream

    def refused(self, reason: str, count: int = 1) -> NotPublished:
        """Return the error for ``count`` messages that were refused."""
        messages = "a message" if count == 1 else f"{count} messages"
        return NotPublished(f"{self.protocol} at {self._address}: {messages} refused: {reason}")

    def impossible(self, reason: str) -> NotPublished:
        """Return the error for a message that the protocol cannot express."""
        return NotPublished(f"{self.protocol} cannot carry the message: {reason}")

    @abstractmethod
    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        """Return the bytes that publish a message, after those that its topic needs once."""

    @abstractmethod
    def confirm(self, count: int, last: bool) -> None:
        """Wait until the broker has accepted the ``count`` messages sent since the last call.

        ``last`` is True if there will be no more. Raises NotPublished if messages were refused.
        """
