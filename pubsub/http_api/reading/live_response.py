"""A response to which messages are added as they are published: the base of all of them.

It is a subscriber of the broker like those of the wire protocols: it has an outbox, and reads the
history through a cursor while it is behind. It is also the ``LongResponse`` of its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from pubsub.broker.delivery.outbox import Outbox

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import KeyChange, Topic
    from pubsub.http_api.requests.api_request import ApiRequest

log = Logger()
HEARTBEAT_SECONDS = 15.0
"""Seconds between signs of life, by which both sides find out that the connection is broken."""
RESPONSE_BYTES, TOPIC_BYTES = 4096, 512
"""Estimated bytes of memory of a response, and of each topic that it is subscribed to."""


class _NotifyingOutbox(Outbox):
    """The outbox of a client that gets a notice of each gap."""

    __slots__ = ("_response",)
    chooses_start = True

    def __init__(self, listener: Listener, response: LiveResponse) -> None:
        super().__init__(
            listener.cursors, response.channel.stream, listener.slow, response, listener.traffic
        )
        self._response = response

    def missed(self, start: int, stop: int, reason: str) -> None:
        """See ``Outbox``."""
        self._response.report_gap(start, stop, reason)


@implementer(IPushProducer)
class LiveResponse:
    """A ``Subscriber``, and the producer of its connection."""

    def __init__(self, listener: Listener, request: ApiRequest) -> None:
        self.channel = request.channel
        self._listener = listener
        self._request = request
        self._outbox = _NotifyingOutbox(listener, self)
        self._beat = listener.clock.seconds()

    # For subclasses

    def report_gap(self, start: int, stop: int, reason: str) -> None:
        """Tell the client that messages from offset ``start`` to before ``stop`` are missing."""
        raise NotImplementedError

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        raise NotImplementedError

    # As a subscriber

    @property
    def label(self) -> str:
        """See ``Subscriber``."""
        return self._request.label

    def log_fields(self) -> dict[str, str]:
        """See ``Marked``."""
        return self.channel.log_fields()

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``."""
        return True

    def evict(self, reason: str) -> None:
        """See ``Subscriber``."""
        if not self._outbox.closed:
            self._listener.evicted(reason, self.label, self.channel)
            self.channel.count_refusal("stream-cut")
            log.info(
                "http: subscriber {client} disconnected: {reason}",
                client=self.label,
                reason=reason,
                connection=self.log_fields(),
            )
            self.channel.abort(reason)

    @property
    def outbox(self) -> Outbox:
        """The messages that wait for the client."""
        return self._outbox

    # The transport

    def take_channel(self) -> None:
        """Become the long response of the connection, and its producer."""
        self.channel.long_response = self
        self._request.registerProducer(self, True)
        if self.channel.output_full:
            self._outbox.pause()

    def pauseProducing(self) -> None:
        """See IPushProducer."""
        self._outbox.pause()

    def resumeProducing(self) -> None:
        """See IPushProducer."""
        self._outbox.resume()

    def stopProducing(self) -> None:
        """See IPushProducer; the end of the connection follows."""

    # As a long response

    def sweep(self, now: float) -> None:
        """See ``LongResponse``."""
        raise NotImplementedError

    def drain(self, reason: str) -> None:
        """See ``LongResponse``."""
        raise NotImplementedError

    def input_ended(self) -> None:
        """See ``LongResponse``."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        """See ``LongResponse``."""
        raise NotImplementedError

    def end(self) -> None:
        """See ``LongResponse``."""
        raise NotImplementedError

    def discarded(self, nbytes: int) -> None:
        """See ``LongResponse``."""
        self._outbox.count_untaken(nbytes)
