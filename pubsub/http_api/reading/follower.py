"""A follower: a response without an end, of messages in lines or events."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pubsub.broker.topic_space.prefix_subscriptions import PrefixSubscriptions
from pubsub.broker.topic_space.provisional_topics import ProvisionalTopics
from pubsub.errors import MemoryExhausted
from pubsub.http_api.reading.chunked_response import ChunkedResponse
from pubsub.http_api.reading.follow_formats import chunk
from pubsub.http_api.reading.live_response import HEARTBEAT_SECONDS, RESPONSE_BYTES, TOPIC_BYTES
from pubsub.http_api.requests.api_request import TOKEN_EXPIRED

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import KeyChange, Topic
    from pubsub.http_api.reading.follow_formats import FollowEncoding
    from pubsub.http_api.reading.follow_start import HistoryGap
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.requests.request_access import RequestAccess


class Follower(ChunkedResponse):
    """The subscriptions of one request: to topics, and to those whose names have ``prefixes``.

    It is created when the request has been checked; ``run`` ends with the response. With ``past``
    it reads messages that were published before, which needs other rights. Of the topics with a
    prefix, those that may not be read are left out.
    """

    def __init__(
        self,
        listener: Listener,
        request: ApiRequest,
        access: RequestAccess,
        names: tuple[str, ...],
        encoding: FollowEncoding,
        past: bool,
        prefixes: Collection[str],
    ) -> None:
        nbytes = TOPIC_BYTES * (len(names) + len(prefixes))
        super().__init__(listener, request, RESPONSE_BYTES + nbytes)
        self._access = access
        self._names = names
        self._encoding = encoding
        self._past = past
        self._topics = ProvisionalTopics(listener.topics, listener.router)
        self._followed: set[Topic] = set()
        self._prefixes = list(dict.fromkeys(prefix.encode() for prefix in prefixes))
        self._prefix_readers = PrefixSubscriptions.of(listener)

    async def run(self, start: int, gap: HistoryGap | None) -> None:
        """Follow from the offset ``start`` on, until the response has ended.

        ``gap`` is reported first. Raises the errors of the creation of a topic; nothing has been
        sent then.
        """
        slices = self._listener.slices
        try:
            await slices.finish(self._topics.add(self._names))
            if self._request.client_left:
                return
            self._begin(start, gap)
            for prefix in self._prefixes:
                self._prefix_readers.add(prefix, self)
            subscribing = slices.finish(self._subscribe(start))
            stored = bool(self._prefixes) or any(topic.durability for topic in self._topics)
            if stored and not subscribing.called:
                # Messages of the first topics would be sent before older ones of the others, and
                # their positions would be behind these.
                self._outbox.hold()
                self._outbox.begin_behind()
            await subscribing
            self._outbox.release()
            await self._done
        finally:
            for prefix in self._prefixes:
                self._prefix_readers.discard(prefix, self)
            self.release("disconnected")
            slices.run(self._topics.withdraw())

    def _begin(self, start: int, gap: HistoryGap | None) -> None:
        self.start_chunks()
        if self.channel.leaving:
            self.drain(self.channel.end_reason)
        self._outbox.send(self._encoding.begin(start))
        if gap is not None:
            self.report_gap(*gap)

    def _subscribe(self, start: int) -> Work:
        router = self._listener.router
        for topic in self._topics:
            if self._ended:
                return
            self._followed.add(topic)
            router.subscribe(self._outbox, topic, self._encoding, start, admitted=True)
            yield
        for prefix in self._prefixes:
            for topic in self._listener.topics.with_prefix(prefix):
                if self._ended:
                    return
                self._join(topic, start, admitted=False)
                yield

    def _join(self, topic: Topic, start: int | None, admitted: bool) -> None:
        """Subscribe to a topic with one of the prefixes, if it may be read."""
        if self._ended or not self._may_follow(topic.name):
            return
        router = self._listener.router
        try:
            router.subscribe(self._outbox, topic, self._encoding, start, admitted=admitted)
        except MemoryExhausted as error:
            # The client would not know which topics are missing.
            self.evict(error.reason)

    def join(self, topic: Topic, admitted: bool = False) -> None:
        """See ``PrefixReader``."""
        self._join(topic, None, admitted)

    # Notices besides messages

    def report_gap(self, start: int, stop: int, reason: str) -> None:
        """Tell the client that messages from offset ``start`` to before ``stop`` are missing."""
        self._tell("gap", start=start, stop=stop, reason=reason)

    def send_end(self, reason: str) -> None:
        """See ``ChunkedResponse``."""
        self._tell("end", reason=reason)

    def _tell(self, name: str, **members: object) -> None:
        if not self._ended:
            self._outbox.send(chunk(self._encoding.notice(name, **members)))

    # As a subscriber

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        if self._ended or self._may_follow(topic.name):
            return not self._ended
        self._listener.refuse("revoked", self.label, topic=topic.name, connection=self.channel)
        self._tell("revoked", topic=topic.name)
        self._followed.discard(topic)
        if not (self._followed or self._prefixes):
            # The caller ends the subscription before that.
            self._listener.at_tick_end(lambda: self.finish("revoked"))
        return False

    def _may_follow(self, name: str) -> bool:
        access = self._access
        allowed = access.may_read(name) if self._past else access.may_follow(name)
        return allowed and access.token_is_valid

    # As a long response

    def sweep(self, now: float) -> None:
        """See ``LongResponse``: send a sign of life, end with the token."""
        if not self._access.token_is_valid:
            self._listener.refuse(TOKEN_EXPIRED, self.label, connection=self.channel)
            self.finish(TOKEN_EXPIRED)
        elif now - self._beat >= HEARTBEAT_SECONDS:
            self._beat = now
            self._listener.router.complete(self._outbox)
            self._listener.router.flush()
            if self._outbox.drained:
                # While it is behind, its position is that of the last message.
                is_live = self._outbox.cursor is None
                at = self._listener.store.next_offset if is_live else None
                self._outbox.send(self._encoding.heartbeat(at))
