"""Places for the streams that are read at a time: shared by clients, charged to the memory budget.

A stream whose client does not read gives its place up to one that waits for it. Its client finds
the response incomplete, and can ask again from the offset after the last message.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

from pubsub.http_api.requests.api_error import UNAVAILABLE, ApiError
from pubsub.http_api.requests.shares import Shares

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener

STREAM_BYTES = 3 * 1024 * 1024
"""Bytes of memory that a stream takes: a parcel, one encoded, and one in the transport."""
# Seconds without reading after which a stream can be displaced.
_STALLED_SECONDS = 1.0


class Displaceable(Protocol):
    """A stream; ``stalled_since`` is when its client stopped reading, None while it reads."""

    stalled_since: float | None

    def displace(self) -> None:
        """End, because the place is needed."""


class StreamPlaces:
    """The places of one listener, ``max-streams`` of them."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._shares = Shares(lambda: listener.settings["max-streams"])
        self._streams: dict[Displaceable, Hashable] = {}

    def begin(self, stream: Displaceable, client: Hashable) -> None:
        """Give a stream of ``client`` a place; raises ApiError or MemoryExhausted."""
        shares = self._shares
        if not shares.take(client, 1) and not (self._displace(client) and shares.take(client, 1)):
            own = shares.held(client)
            message = f"limit reached: {shares.used} streams are being read, {own} by this client"
            raise ApiError(UNAVAILABLE, "streams", message)
        try:
            self._listener.memory.reserve(STREAM_BYTES)
        except BaseException:
            shares.free(client, 1)
            raise
        self._streams[stream] = client

    def end(self, stream: Displaceable) -> None:
        """Take the place back, if the stream has one."""
        client = self._streams.pop(stream, None)
        if client is not None:
            self._shares.free(client, 1)
            self._listener.memory.free(STREAM_BYTES)

    def _displace(self, client: Hashable) -> bool:
        """End the stream that has been stalled for the longest; return whether there is one.

        It is one of ``client``, or of the client that has the most if ``client`` has none.
        """
        held = self._shares.held
        loser = client if held(client) else max(self._streams.values(), key=held, default=client)
        latest = self._listener.clock.seconds() - _STALLED_SECONDS
        since = {
            stream: stream.stalled_since
            for stream, owner in self._streams.items()
            if owner == loser and stream.stalled_since is not None
        }
        longest = min(since, key=since.__getitem__, default=None)
        if longest is None or since[longest] > latest:
            return False
        self.end(longest)
        longest.displace()
        return True
