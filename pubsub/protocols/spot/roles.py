"""The server side: the roles of a listener for the sockets that connect to it (spot §2.3).

peer                  it sends                              it receives
DEALER, REQ, ROUTER   QUERY, PUBLISH, SUBSCRIBE,            QUERY_RESP, PUBLISH
                      UNSUBSCRIBE
SUB, XSUB             subscriptions, as commands            topic, data
                      or as messages
PUB, XPUB             topic, data                           one subscription to everything
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from pubsub.broker.topics import topic_name
from pubsub.errors import RateLimited, Refused, TopicUnreachable
from pubsub.protocols.spot.codec import (
    Publish,
    Query,
    QueryResponse,
    QueryResponseEncoder,
    SpotError,
    Subscribe,
    Unsubscribe,
    decode_request,
)
from pubsub.protocols.spot.heads import publish_prefix, topic_prefix
from pubsub.protocols.spot.subscriptions import KeptSubscriptions, PrefixReaders, Subscriptions
from pubsub.protocols.spot.zmtp import Command

if TYPE_CHECKING:
    from pubsub.broker.mixes import AddressMixes
    from pubsub.broker.sessions import Session
    from pubsub.broker.slices import Work
    from pubsub.kernel import Columns
    from pubsub.protocols.spot.connection import ZmtpConnection
    from pubsub.protocols.spot.heads import Publication

_SUBSCRIBE, _CANCEL = b"\x01", b"\x00"
# Topics that one step of the answer to a query looks at.
_PAGE = 32


class XSubSide:
    """The role for PUB and XPUB sockets (spot §4.2)."""

    def __init__(self, connection: ZmtpConnection, mixes: AddressMixes) -> None:
        self._connection = connection
        self._mixes = mixes
        identity = connection.handshake.metadata.get(b"identity", b"")
        self._publisher = connection.listener.publisher(connection, identity)

    def command(self, command: Command) -> None:
        """See ``Role``: no command has a meaning here."""

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``Role``."""
        if len(frames) != 2:
            raise SpotError
        return Publish(*frames)

    def receive(self, columns: Columns) -> None:
        """See ``Role``: there is no reply; refusals are counted (spot §5.1)."""
        if len(columns.addresses) == 1:
            self._publish(columns.addresses[0], columns)
        elif not self._publish_mixed(columns):
            for _index, run in columns.runs():
                self._publish(run.addresses[0], run)

    def _publish_mixed(self, columns: Columns) -> bool:
        """Publish messages of one origin to several topics; False if that is not possible."""
        origins = {publication.origin for publication in columns.addresses}
        mixed = self._mixes.find(columns) if len(origins) == 1 else None
        if mixed is None:
            return False
        return self._publisher.publish_mixed(*mixed, sender=origins.pop()) is not None

    def _publish(self, publication: Publication, columns: Columns) -> None:
        listener, name = self._connection.listener, publication.topic
        try:
            listener.access.check_publish(name)
            topic = listener.topics.create(name, hosted=False)
            if topic.upstream is not None and self._connection.is_node:
                raise TopicUnreachable(name)
            batch = self._publisher.publish(topic, columns, sender=publication.origin)
        except Refused as refused:
            self._connection.refuse(refused.reason, columns.count, name)
        else:
            over_limit = columns.count - batch.count
            if over_limit:
                self._connection.refuse(RateLimited.reason, over_limit, name)

    def closed(self) -> None:
        """See ``Role``."""


class RouterSide(XSubSide):
    """The ROUTER for DEALER, REQ and ROUTER sockets (spot §3)."""

    def __init__(
        self,
        connection: ZmtpConnection,
        mixes: AddressMixes,
        prefix_readers: PrefixReaders,
        session: Session | None = None,
    ) -> None:
        super().__init__(connection, mixes)
        self._session = session
        kept = None if session is None else session.state
        assert kept is None or isinstance(kept, KeptSubscriptions)
        self._subscriptions = Subscriptions(connection, prefix_readers, publish_prefix, kept)
        if kept is not None:
            # The program at the other end does not know that its connection is a new one.
            self._subscriptions.restore(kept)

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
                self._connection.carry_out(self._answer_query())
            case QueryResponse():
                # A well-formed command without meaning here, as nothing was queried.
                pass
        return None

    def _subscribe(self, topic: bytes) -> None:
        if topic.endswith(b"*"):
            if not self._subscriptions.has_prefix(topic[:-1]):
                self._subscriptions.add_prefix(topic[:-1])
            return
        topics = self._connection.listener.topics
        name = topic_name(topic)
        if self._connection.is_node and name in topics and topics.named(name).upstream is not None:
            # Messages of one broker are not relayed to a third (spot §7.4).
            raise TopicUnreachable(name)
        self._subscriptions.add(topic, hosted=self._connection.is_node)

    def _unsubscribe(self, topic: bytes) -> None:
        if topic.endswith(b"*"):
            self._subscriptions.discard_prefix(topic[:-1], all_of_it=True)
        else:
            self._subscriptions.discard(topic)

    def _answer_query(self) -> Work:
        """Reply with the names of the topics hosted here that the peer may use (spot §3.3)."""
        connection = self._connection
        memory = connection.listener.memory
        response = QueryResponseEncoder()
        held = 0
        try:
            topics = connection.listener.topics.with_prefix(b"")
            while page := list(islice(topics, _PAGE)):
                added = response.add(
                    [t.name.encode() for t in page if t.hosted and self._may_use(t.name)]
                )
                memory.add(added)
                held += added
                yield
                if connection.closing:
                    return
            data = response.finish()
            connection.reply_latest("topics", lambda: data)
        finally:
            memory.free(held)

    def _may_use(self, name: str) -> bool:
        access = self._connection.listener.access
        if access.may_subscribe(name):
            return True
        try:
            access.check_publish(name)
        except Refused:
            return False
        return True

    def closed(self) -> None:
        """See ``Role``."""
        session, sessions = self._session, self._connection.listener.sessions
        if session is not None:
            kept = self._subscriptions.end() if sessions.keeps(session) else None
            session.state = kept
            if kept is None:
                sessions.close(session)
            else:
                sessions.detach(session, kept.positions)
        self._subscriptions.clear()


class XPubSide:
    """The XPUB for SUB and XSUB sockets (spot §4.1)."""

    def __init__(self, connection: ZmtpConnection, prefix_readers: PrefixReaders) -> None:
        self._subscriptions = Subscriptions(connection, prefix_readers, topic_prefix)

    def command(self, command: Command) -> None:
        """See ``Role``: subscriptions of peers with ZMTP 3.1."""
        if command.name == b"SUBSCRIBE":
            self._subscriptions.add_prefix(command.data)
        elif command.name == b"CANCEL":
            self._subscriptions.discard_prefix(command.data)

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``Role``: subscriptions of older peers."""
        first = frames[0]
        if len(frames) != 1 or not first.startswith((_SUBSCRIBE, _CANCEL)):
            raise SpotError
        if first.startswith(_SUBSCRIBE):
            self._subscriptions.add_prefix(first[1:])
        else:
            self._subscriptions.discard_prefix(first[1:])
        return None

    def receive(self, columns: Columns) -> None:
        """See ``Role``: these peers do not publish."""

    def closed(self) -> None:
        """See ``Role``."""
        self._subscriptions.clear()
