"""A follower: a response without an end, to which messages are added as they are published.

It is a subscriber of the broker like those of the wire protocols: it has an outbox, and reads the
history through a cursor while it is behind. Its response ends in order if the broker stops, if the
client closes its half, or if nothing may be read any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from pubsub.admin.follow_formats import chunk
from pubsub.broker.outbox import Outbox
from pubsub.broker.provisional_topics import ProvisionalTopics

if TYPE_CHECKING:
    from pubsub.admin.api_request import ApiRequest
    from pubsub.admin.follow_formats import FollowEncoding
    from pubsub.admin.follow_start import Gap
    from pubsub.admin.request_access import RequestAccess
    from pubsub.broker.batch import Batch
    from pubsub.broker.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.topics import KeyChange, Topic
    from pubsub.interfaces import Consumer

log = Logger()
HEARTBEAT_SECONDS = 15.0
"""Seconds between signs of life, by which both sides find out that the connection is broken."""
# Estimated bytes of memory of a follower, and of each of its topics.
_FOLLOWER_BYTES, _TOPIC_BYTES = 4096, 512


class FollowOutbox(Outbox):
    """The outbox of a follower, which is told what it misses."""

    __slots__ = ("_follower",)

    def __init__(self, listener: Listener, consumer: Consumer, follower: Follower) -> None:
        super().__init__(listener.cursors, consumer, listener.slow, follower)
        self._follower = follower

    def missed(self, start: int, stop: int, reason: str) -> None:
        """See ``Outbox``."""
        self._follower.tell_gap(start, stop, reason)


@implementer(IPushProducer)
class Follower:
    """The subscriptions of one request: a ``Subscriber``, and a ``LongResponse``.

    It is created when the request has been checked; ``run`` ends with the response. With ``past``
    it reads messages that were published before, which needs other rights.
    """

    def __init__(
        self,
        listener: Listener,
        request: ApiRequest,
        access: RequestAccess,
        names: tuple[str, ...],
        encoding: FollowEncoding,
        past: bool,
    ) -> None:
        self._listener = listener
        self._request = request
        self._channel = request.channel
        self._access = access
        self._names = names
        self._encoding = encoding
        self._past = past
        self._held = _FOLLOWER_BYTES + _TOPIC_BYTES * len(names)
        listener.memory.reserve(self._held)
        self._topics = ProvisionalTopics(listener.topics, listener.router)
        self._followed: set[Topic] = set()
        self._outbox = FollowOutbox(listener, request.channel.stream, self)
        self._ended = False
        self._ending: str | None = None
        self._done: Deferred[None] = Deferred()
        self._beat = listener.clock.seconds()

    @property
    def label(self) -> str:
        """See ``Subscriber``."""
        return self._request.label

    async def run(self, start: int, gap: Gap | None) -> None:
        """Follow from the offset ``start`` on, until the response has ended.

        ``gap`` is reported first. Raises what the creation of a topic raises; nothing has been sent
        then.
        """
        slices = self._listener.slices
        try:
            await slices.finish(self._topics.add(self._names))
            if self._request.client_left:
                return
            self._begin(start, gap)
            await slices.finish(self._subscribe(start))
            await self._done
        finally:
            self._release("disconnected")
            slices.run(self._topics.withdraw())

    def _begin(self, start: int, gap: Gap | None) -> None:
        request, channel = self._request, self._channel
        # Sends the headers; chunks are written to the transport from now on.
        request.write(b"")
        channel.long_response = self
        request.registerProducer(self, True)
        if channel.output_full:
            self._outbox.pause()
        self._outbox.send(self._encoding.begin(start))
        if gap is not None:
            self.tell_gap(*gap)

    def _subscribe(self, start: int) -> Work:
        router = self._listener.router
        for topic in self._topics:
            if self._ended:
                return
            self._followed.add(topic)
            router.subscribe(self._outbox, topic, self._encoding, start)
            yield

    # What is told besides messages

    def tell_gap(self, start: int, stop: int, reason: str) -> None:
        """Tell the client that messages from offset ``start`` to before ``stop`` are missing."""
        self._tell("gap", start=start, stop=stop, reason=reason)

    def _tell(self, name: str, **members: object) -> None:
        if not self._ended:
            self._outbox.send(chunk(self._encoding.notice(name, **members)))

    # As a subscriber

    def evict(self, reason: str) -> None:
        """See ``Subscriber``."""
        self._listener.evicted(reason, self.label)
        self._cut(reason)

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        if self._ended or self._may_follow(topic.name):
            return not self._ended
        self._listener.refuse("revoked", self.label, topic=topic.name)
        self._tell("revoked", topic=topic.name)
        self._followed.discard(topic)
        if not self._followed:
            # The caller ends the subscription before that.
            self._listener.at_tick_end(lambda: self._finish("revoked"))
        return False

    def _may_follow(self, name: str) -> bool:
        access = self._access
        allowed = access.may_read(name) if self._past else access.may_follow(name)
        return allowed and access.token_is_valid

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``."""
        return True

    # The transport

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
        """See ``LongResponse``: send a sign of life, end with the token."""
        if not self._access.token_is_valid:
            self._listener.refuse("bad-token", self.label)
            self._finish("token-expired")
        elif now - self._beat >= HEARTBEAT_SECONDS:
            self._beat = now
            self._listener.router.flush()
            if self._outbox.drained:
                # While it is behind, its position is that of the last message.
                is_live = self._outbox.cursor is None
                at = self._listener.store.next_offset if is_live else None
                self._outbox.send(self._encoding.heartbeat(at))

    def drain(self) -> None:
        """See ``LongResponse``: send what is queued, then end."""
        self._end_in_order("stopped")

    def input_ended(self) -> None:
        """See ``LongResponse``: the client is leaving, as on every other wire."""
        self._end_in_order("half-closed")

    def _end_in_order(self, reason: str) -> None:
        if self._ending is None and not self._ended:
            self._ending = reason
            # What was published in this tick is for the client too.
            self._listener.router.flush()
            self._outbox.when_drained(lambda: self._finish(reason))

    def discarded(self, nbytes: int) -> None:
        """See ``LongResponse``."""
        self._outbox.count_untaken(nbytes)

    def end(self) -> None:
        """See ``LongResponse``."""
        self._release("disconnected")
        self._end_run()

    # The end

    def _finish(self, reason: str) -> None:
        """Tell the client why the response ends, and end it."""
        if self._ended:
            return
        self._tell("end", reason=reason)
        self._release(reason)
        self._channel.response_ended()
        self._request.unregisterProducer()
        self._request.finish()
        self._end_run()

    def _cut(self, reason: str) -> None:
        """Close the connection without the end of the response."""
        if not self._ended:
            self._channel.count_refusal("stream-cut")
            log.info(
                "http: follower {client} disconnected: {reason}", client=self.label, reason=reason
            )
            self._channel.abort(reason)

    def _release(self, reason: str) -> None:
        """End the subscriptions. Messages that were not sent are counted with ``reason``."""
        if not self._ended:
            self._ended = True
            self._listener.memory.free(self._held)
            self._outbox.shut(reason)

    def _end_run(self) -> None:
        if not self._done.called:
            self._done.callback(None)
