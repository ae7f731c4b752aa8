"""``ChannelDeparture``: an HTTP connection closes as every stream does (``departure.py``).

twisted.web itself waits without limit for a client that does not take the sent bytes, and
drops the responses to a client that has closed its half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twisted.logger import Logger

from pubsub.broker.clients.connection_marks import Marked
from pubsub.wire.departure import Departure
from pubsub.wire.life_cycle import Event

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.request_times import RequestTimes
    from pubsub.wire.direct_transport import StreamTransport

log = Logger()


class DepartingChannel(Marked, Protocol):
    """The connection, as its departure uses it."""

    listener: Listener

    @property
    def stream(self) -> StreamTransport:
        """The transport."""

    @property
    def label(self) -> str:
        """The client's name in logs."""

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""

    def end(self) -> None:
        """See ``Leaver``."""

    def discarded(self, nbytes: int) -> None:
        """See ``Leaver``."""


class ChannelDeparture:
    """The ``Leaver`` of one connection; its departure begins with the first event."""

    __slots__ = ("_channel", "_departure", "_times", "discards_input", "has_ended")

    def __init__(self, channel: DepartingChannel, times: RequestTimes) -> None:
        self._channel = channel
        self._times = times
        self._departure: Departure | None = None
        self.discards_input = False
        """True once no further input is handled."""
        self.has_ended = False
        """True once the connection has released what it holds; more bytes may still be written."""

    @property
    def has_begun(self) -> bool:
        """True once the connection is on the way to its end."""
        return self._departure is not None

    def on(self, event: Event) -> None:
        """Take ``event``, which makes the connection leave if it does not yet."""
        if self._departure is None:
            self._departure = Departure(self, self._channel.stream, self._channel.listener)
        self._departure.on(event)

    def drained(self) -> None:
        """The transport has sent all its bytes."""
        if self._departure is not None:
            self._departure.on(Event.DRAINED)

    def answered(self) -> None:
        """A response has been written."""
        if self._departure is not None:
            self._departure.settle()

    # As a ``Leaver``

    def discard_input(self) -> None:
        """See ``Leaver``."""
        self.discards_input = True

    def owes_answers(self) -> bool:
        """See ``Leaver``."""
        return self._times.is_answering

    def send_last(self, data: bytes) -> None:
        """See ``Leaver``: there is nothing to send behind a response."""

    def end(self) -> None:
        """See ``Leaver``."""
        self.discards_input = self.has_ended = True
        self._channel.end()

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""
        self._channel.evict(reason)

    def discarded(self, nbytes: int) -> None:
        """See ``Leaver``."""
        self._channel.discarded(nbytes)

    def timed_out(self, seconds: float) -> None:
        """See ``Leaver``."""
        log.info(
            "http client {client!r} disconnected: did not read its response for {seconds:g} s",
            client=self._channel.label,
            seconds=seconds,
            connection=self._channel.log_fields(),
        )
