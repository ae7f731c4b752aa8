"""The seam between a shared history and the stream of the engine that all brokers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from twisted.internet.defer import Deferred

FETCHED = 4 * 1024**2
"""About how many bytes of the stream wait for the broker."""


class StreamAway(Exception):
    """The stream cannot be read or written at present; the text says why."""


class StreamMessage(NamedTuple):
    """A message of the stream: its sequence, the origin that has sent it, and a part."""

    sequence: int
    origin: str
    data: bytes


class StreamWatcher(Protocol):
    """Observes whether the stream can be used."""

    def joined(self) -> None:
        """The engine is there."""

    def left(self) -> None:
        """It is not; waiting calls fail."""


class ReplicaStream(Protocol):
    """A log of messages at the engine. Its methods are called in the reactor thread.

    Deferreds fail with StreamAway if the connection ends or the engine refuses.
    """

    @property
    def limit(self) -> int:
        """Bytes of the largest message."""

    def watch(self, watcher: StreamWatcher) -> None:
        """Report to ``watcher``; called before the connection is opened."""

    @property
    def identity(self) -> str:
        """Another text for each stream; known when ``begin`` has fired."""

    def begin(self, after: int) -> Deferred[int]:
        """Read from the message after the sequence ``after`` on.

        Fires with the sequence of the last message at present; with ``after`` or less if there is
        none. The earlier reading ends.
        """

    def fetch(self) -> Deferred[Sequence[StreamMessage]]:
        """Fires with the next messages in order; waits until there is one."""

    def publish(self, origin: str, data: bytes) -> Deferred[None]:
        """Append a message; fires when it is stored. Messages are stored in the order of calls,
        and some of them may be lost."""
