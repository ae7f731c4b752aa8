"""fast's server: the settings, the factory, and who owns which exclusive topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory

from pubsub.broker.topics import fnv1a32
from pubsub.errors import IdCollision, NotConfigured, TopicExists, TopicNotFound
from pubsub.protocols.fast.codec import DURABLE, EXCLUSIVE
from pubsub.protocols.fast.connection import FastConnection
from pubsub.protocols.fast.scan import Scanner
from pubsub.settings import BOOLEAN, SECONDS, SIZE, Setting, integer
from pubsub.wire.connection import ConnectionFactory

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.listener import Listener
    from pubsub.broker.tokens import Token
    from pubsub.broker.topics import Topic

SETTINGS: tuple[Setting, ...] = (
    Setting("max-payload", SIZE, "1M", "bytes a message may have"),
    Setting("max-subscriptions", integer(0, 10**9), 10_000, "topics a connection may subscribe to"),
    Setting("errors", BOOLEAN, True, "answer refusals; off: with silence, as specified"),
    Setting("require-create", BOOLEAN, False, "ask for the permission `create` in CREATE"),
    Setting(
        "rotation-grace",
        SECONDS,
        0,
        "seconds to subscribe again with the new key after a rotation; 0: no need to",
    ),
)


class FastFactory(ConnectionFactory):
    """Builds the connections of one listener. Owners are those of all fast listeners."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        broker = listener.broker
        if not broker.tokens.ring:
            raise NotConfigured(
                "there is no secret to verify tokens with; make one with "
                "`pubsub secret FILE` and name it with --secret-file FILE"
            )
        listener.check_keys_itself()
        self.max_payload: int = listener.settings["max-payload"]
        self.scanner = Scanner(self.max_payload)
        self._owners: dict[Topic, FastConnection] = broker.shared("fast-owners", dict)

    def create(self, name: str, token: Token, creator: FastConnection, flags: int) -> None:
        """Make the topic, or close one that is open, with the token's key (fast §3.1).

        Raises IdCollision, TopicExists, LimitReached or MemoryExhausted.
        """
        broker = self.listener.broker
        exclusive = bool(flags & EXCLUSIVE)
        self._check_id(name)
        new = name not in broker.topics
        topic = broker.topics.create(name, hosted=False)
        keys = broker.queue_keys
        closed = topic in keys
        if (
            topic.upstream is not None
            or (closed and not keys.matches(topic, token.queue_key))
            or not self.may_read(topic, creator)
            or (exclusive and not new and topic not in self._owners)
        ):
            raise TopicExists(name)
        broker.topics.claim(topic)
        if exclusive:
            self._own(topic, creator)
        elif topic in self._owners:
            self._disown(topic, creator)
        broker.demand(topic, bool(flags & DURABLE), exclusive)
        # Last, as it looks at those who read the topic already.
        if not closed:
            keys.close(topic, token.queue_key, token.subject, creator.label)

    def may_read(self, topic: Topic, connection: FastConnection) -> bool:
        """Is the topic not another connection's own?"""
        return self._owners.get(topic, connection) is connection

    def _own(self, topic: Topic, owner: FastConnection) -> None:
        self._owners[topic] = owner
        self.listener.broker.queue_keys.exclusive.add(topic.name)
        if owner.owned is None:
            owner.owned = set()
        owner.owned.add(topic)

    def _disown(self, topic: Topic, owner: FastConnection) -> None:
        del self._owners[topic]
        self.listener.broker.queue_keys.exclusive.discard(topic.name)
        if owner.owned is not None:
            owner.owned.discard(topic)

    def left(self, connection: FastConnection) -> None:
        """A connection is gone, and its exclusive topics with it."""
        for topic in tuple(connection.owned or ()):
            self._disown(topic, connection)
            self.listener.broker.end_topic(topic)

    def _check_id(self, name: str) -> None:
        try:
            other = self.listener.broker.topics.by_id(fnv1a32(name.encode()))
        except TopicNotFound:
            return
        if other.name != name:
            raise IdCollision(name)

    def buildProtocol(self, addr: IAddress | None) -> FastConnection:
        """See IProtocolFactory."""
        return FastConnection(self.listener, self)


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    return FastFactory(listener)
