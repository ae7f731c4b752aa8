"""The status once a second, to any number of clients that follow it.

It is made and encoded once a second for all of them, and sent to one client a step. A
client that has not taken the last one is left out, so that no status queues for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.errors import LimitReached
from pubsub.http_api.reading.chunked_response import ChunkedResponse
from pubsub.http_api.reading.follow_formats import EVENT_STREAM, RETRY_MILLISECONDS, chunk
from pubsub.http_api.reading.live_response import RESPONSE_BYTES
from pubsub.http_api.requests.api_error import UNAVAILABLE, ApiError
from pubsub.http_api.requests.api_request import TOKEN_EXPIRED
from pubsub.http_api.requests.request_access import METRICS
from pubsub.management.listing import to_json
from pubsub.management.status import status_of

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import KeyChange, Topic
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.requests.request_access import RequestAccess

EVENTS, LINES = "events", "jsonl"
"""The formats."""
# Followers that begin at the bounds of memory or connections: operators look then. They are fewer
# than the places of operators, which have single requests too.
_SPARED = 4
_TYPES = {EVENTS: EVENT_STREAM, LINES: "application/x-ndjson"}


class StatusFeed:
    """The followers of one listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._followers: dict[StatusFollower, None] = {}
        self._is_sending = False
        listener.statistics.each_second.append(self._send)

    async def follow(self, request: ApiRequest, access: RequestAccess, format: str) -> None:
        """Answer ``request`` until it ends; raises MemoryExhausted or ApiError."""
        spared = self._listener.memory.full or request.channel.has_place
        if spared and sum(one.spared for one in self._followers) >= _SPARED:
            self._listener.memory.check()
            raise ApiError.from_refusal(LimitReached("connections"), UNAVAILABLE)
        follower = StatusFollower(self._listener, request, access, format, spared)
        self._followers[follower] = None
        try:
            await follower.run(self._encode(format))
        finally:
            del self._followers[follower]

    def _send(self) -> None:
        if self._followers and not self._is_sending:
            self._is_sending = True
            self._listener.slices.run(self._send_all())

    def _send_all(self) -> Work:
        try:
            encoded = {name: self._encode(name) for name in _TYPES}
            for follower in tuple(self._followers):
                yield
                follower.send(encoded[follower.format])
        finally:
            self._is_sending = False

    def _encode(self, format: str) -> bytes:
        status = to_json(status_of(self._listener.statistics, self._listener.readiness))
        return _encoded(format, status)


def _encoded(format: str, data: bytes, event: bytes = b"") -> bytes:
    """Return a chunk of the response."""
    if format == LINES:
        return chunk(data + b"\n")
    head = b"event: %b\n" % event if event else b""
    return chunk(head + b"data: " + data + b"\n\n")


class StatusFollower(ChunkedResponse):
    """One client that follows the status. It subscribes to no topic."""

    def __init__(
        self,
        listener: Listener,
        request: ApiRequest,
        access: RequestAccess,
        format: str,
        spared: bool = False,
    ) -> None:
        self.spared = spared
        """Whether it began at a bound."""
        super().__init__(listener, request, RESPONSE_BYTES, spared)
        self.format = format
        self._access = access
        self._behind_since: float | None = None

    async def run(self, first: bytes) -> None:
        """Send the status until the response ends."""
        try:
            self._request.require_chunks()
            self._request.head(200, {}, _TYPES[self.format])
            if self._request.method == b"HEAD":
                self._request.finish()
                return
            self.start_chunks()
            if self.format == EVENTS:
                self._outbox.send(chunk(b"retry: %d\n\n" % RETRY_MILLISECONDS))
            self.send(first)
            if self.channel.leaving:
                self.drain(self.channel.end_reason)
            await self._done
        finally:
            self.release("disconnected")

    def send(self, data: bytes) -> None:
        """Send one status, unless the client has not taken the last one."""
        if self._ended:
            return
        if self._outbox.drained:
            self._behind_since = None
            self._outbox.send(data)
            return
        now = self._listener.clock.seconds()
        if self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since > self._listener.slow.seconds:
            self.evict(f"slow consumer: behind for {self._listener.slow.seconds:g} s")

    def send_end(self, reason: str) -> None:
        """See ``ChunkedResponse``."""
        end = {"reason": reason} if self.format == EVENTS else {"end": {"reason": reason}}
        self._outbox.send(_encoded(self.format, to_json(end), b"end"))

    # As a subscriber

    def report_gap(self, start: int, stop: int, reason: str) -> None:
        """See ``LiveResponse``: there is no topic."""

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``: there is no topic."""
        return False

    # As a long response

    def sweep(self, now: float) -> None:
        """See ``LongResponse``: end with the token, or with the right."""
        if not self._access.token_is_valid:
            self._listener.refuse(TOKEN_EXPIRED, self.label, connection=self.channel)
            self.finish(TOKEN_EXPIRED)
        elif not self._access.may(METRICS):
            self.finish("revoked")
