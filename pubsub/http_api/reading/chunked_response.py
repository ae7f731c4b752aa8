"""A live response in chunks, of lines or events: the end of it, which both kinds share.

It ends in order if the broker stops, if the client closes its half, or if nothing may be read any
more. The last chunk has the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from pubsub.http_api.reading.live_response import LiveResponse

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.api_request import ApiRequest


class ChunkedResponse(LiveResponse):
    """A live response that takes ``nbytes`` of memory.

    Raises MemoryExhausted at the memory bound, unless ``spared``.
    """

    def __init__(
        self, listener: Listener, request: ApiRequest, nbytes: int, spared: bool = False
    ) -> None:
        # Counted first, so that nothing has to be undone if there is no memory.
        count = listener.memory.add if spared else listener.memory.reserve
        count(nbytes)
        super().__init__(listener, request)
        self._held = nbytes
        self._ended = False
        self._ending: str | None = None
        self._done: Deferred[None] = Deferred()
        """Fires when the response has ended."""

    def send_end(self, reason: str) -> None:
        """Send the last chunk. For subclasses."""
        raise NotImplementedError

    def start_chunks(self) -> None:
        """Send the headers; chunks are written to the transport from now on."""
        # nginx would keep them until it has some KiB.
        self._request.responseHeaders.setRawHeaders("X-Accel-Buffering", ["no"])
        self._request.write(b"")
        self.take_channel()

    # As a long response

    def drain(self, reason: str) -> None:
        """See ``LongResponse``: send the queued bytes, then end."""
        self._end_in_order(reason)

    def input_ended(self) -> None:
        """See ``LongResponse``: the client is leaving, as on every other wire."""
        self._end_in_order("half-closed")

    def _end_in_order(self, reason: str) -> None:
        if self._ending is None and not self._ended:
            self._ending = reason
            # The client also gets messages that were published before.
            self._listener.router.complete(self._outbox)
            self._listener.router.flush()
            self._outbox.when_drained(lambda: self.finish(reason))

    def data_received(self, data: bytes) -> None:
        """See ``LongResponse``; requests that follow wait for the end of this one."""

    def end(self) -> None:
        """See ``LongResponse``."""
        self.release("disconnected")
        self._end_run()

    # The end

    def finish(self, reason: str) -> None:
        """Tell the client why the response ends, and end it."""
        if self._ended:
            return
        self.send_end(reason)
        self.release(reason)
        self.channel.response_ended()
        self._request.unregisterProducer()
        self._request.finish()
        self._end_run()

    def release(self, reason: str) -> None:
        """Free what it holds. Messages that were not sent are counted with ``reason``."""
        if not self._ended:
            self._ended = True
            self._listener.memory.free(self._held)
            self._outbox.shut(reason)

    def _end_run(self) -> None:
        if not self._done.called:
            self._done.callback(None)
