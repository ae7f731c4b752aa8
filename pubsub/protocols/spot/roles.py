"""The server half: what a listener is to the sockets that connect to it (spot §2.3).

the peer is           it sends                              it is sent
DEALER, REQ, ROUTER   QUERY, PUBLISH, SUBSCRIBE,            QUERY_RESP, PUBLISH
                      UNSUBSCRIBE
SUB, XSUB             subscriptions, as commands            topic, data
                      or as messages
PUB, XPUB             topic, data                           one subscription to everything
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.topics import topic_name
from pubsub.errors import RateLimited, Refused, TopicUnreachable
from pubsub.protocols.spot.codec import (
    Publish,
    Query,
    QueryResponse,
    SpotError,
    Subscribe,
    Unsubscribe,
    decode_request,
    encode_request,
)
from pubsub.protocols.spot.scan import publish_stem, topic_stem
from pubsub.protocols.spot.subscriptions import Left, Patterns, Subscriptions
from pubsub.protocols.spot.zmtp import Command

if TYPE_CHECKING:
    from pubsub.broker.message_run import MessageRun
    from pubsub.broker.sessions import Session
    from pubsub.protocols.spot.connection import MessageHead, ZmtpConnection

_SUBSCRIBE, _CANCEL = b"\x01", b"\x00"


class XSubSide:
    """The server to PUB and XPUB sockets (spot §4.2)."""

    def __init__(self, link: ZmtpConnection) -> None:
        self._link = link
        identity = link.handshake.metadata.get(b"identity", b"")
        self._publisher = link.listener.publisher(link, identity)

    def command(self, command: Command) -> None:
        """See ``Role``: there are none we would have to know."""

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``Role``."""
        if len(frames) != 2:
            raise SpotError
        return Publish(*frames)

    def take(self, stem: MessageHead, run: MessageRun) -> None:
        """See ``Role``: nobody is answered; what is refused is counted (spot §5.1)."""
        listener, count = self._link.listener, len(run.payloads)
        try:
            listener.access.check_publish(stem.topic)
            topic = listener.topics.create(stem.topic, hosted=False)
            if topic.upstream is not None and self._link.is_node:
                raise TopicUnreachable(stem.topic)
            batch = self._publisher.publish(topic, run, sender=stem.origin)
        except Refused as refused:
            self._link.refuse(refused.reason, count, stem.topic)
        else:
            late = count - len(batch.payloads)
            if late:
                self._link.refuse(RateLimited.reason, late, stem.topic)

    def left(self) -> None:
        """See ``Role``."""


class RouterSide(XSubSide):
    """The ROUTER to DEALER, REQ and ROUTER sockets (spot §3)."""

    def __init__(
        self, link: ZmtpConnection, patterns: Patterns, session: Session | None = None
    ) -> None:
        super().__init__(link)
        self._session = session
        left = None if session is None else session.state
        assert left is None or isinstance(left, Left)
        self._subscriptions = Subscriptions(link, patterns, publish_stem, left)
        if left is not None:
            # The peer does not know that its connection is another one.
            self._subscriptions.restore(left)

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``Role``."""
        request = decode_request(frames)
        match request:
            case Publish():
                return request
            case Subscribe(topic):
                self._subscribe(topic)
            case Unsubscribe(topic):
                self._unsubscribe(topic)
            case Query():
                self._link.answer("topics", self._topics)
                self._link.rest()
            case QueryResponse():
                # Nobody was asked; but it is a command like the others.
                pass
        return None

    def _subscribe(self, topic: bytes) -> None:
        if topic.endswith(b"*"):
            if not self._subscriptions.has_prefix(topic[:-1]):
                self._subscriptions.add_prefix(topic[:-1])
            return
        topics = self._link.listener.topics
        name = topic_name(topic)
        if self._link.is_node and name in topics and topics.named(name).upstream is not None:
            # What comes from another broker is not passed on to a third (spot §7.4).
            raise TopicUnreachable(name)
        self._subscriptions.add(topic, hosted=self._link.is_node)

    def _unsubscribe(self, topic: bytes) -> None:
        if topic.endswith(b"*"):
            self._subscriptions.discard_prefix(topic[:-1], all_of_it=True)
        else:
            self._subscriptions.discard(topic)

    def _topics(self) -> bytes:
        return encode_request(QueryResponse(self._hosted()))

    def _hosted(self) -> list[bytes]:
        """The names of this broker's own topics that the peer may use (spot §3.3)."""
        listener = self._link.listener
        names = [topic.name for topic in listener.topics if topic.hosted]
        return sorted(name.encode() for name in names if self._may_use(name))

    def _may_use(self, name: str) -> bool:
        access = self._link.listener.access
        if access.may_subscribe(name):
            return True
        try:
            access.check_publish(name)
        except Refused:
            return False
        return True

    def left(self) -> None:
        """See ``Role``."""
        session, sessions = self._session, self._link.listener.sessions
        if session is not None:
            left = self._subscriptions.leave() if sessions.keeps(session) else None
            session.state = left
            if left is None:
                sessions.close(session)
            else:
                sessions.detach(session, left.positions)
        self._subscriptions.clear()


class XPubSide:
    """The XPUB to SUB and XSUB sockets (spot §4.1)."""

    def __init__(self, link: ZmtpConnection, patterns: Patterns) -> None:
        self._subscriptions = Subscriptions(link, patterns, topic_stem)

    def command(self, command: Command) -> None:
        """See ``Role``: subscriptions as peers of 3.1 send them."""
        if command.name == b"SUBSCRIBE":
            self._subscriptions.add_prefix(command.data)
        elif command.name == b"CANCEL":
            self._subscriptions.discard_prefix(command.data)

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``Role``: subscriptions as older peers send them."""
        first = frames[0]
        if len(frames) != 1 or not first.startswith((_SUBSCRIBE, _CANCEL)):
            raise SpotError
        if first.startswith(_SUBSCRIBE):
            self._subscriptions.add_prefix(first[1:])
        else:
            self._subscriptions.discard_prefix(first[1:])
        return None

    def take(self, stem: MessageHead, run: MessageRun) -> None:
        """See ``Role``: they do not publish."""

    def left(self) -> None:
        """See ``Role``."""
        self._subscriptions.clear()
