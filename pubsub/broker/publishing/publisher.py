"""The publishing side of a connection: checks, limits and backpressure, once a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pubsub.broker.figures.traffic import PublisherTally
from pubsub.broker.publishing.gathering import MOST_BYTES, MOST_READ
from pubsub.broker.routing.batch import MAX_SENDER, message_sizes, messages_nbytes
from pubsub.broker.topic_space.publishing_state import state_changes
from pubsub.errors import HistoryUnavailable, NotAuthorized, RateLimited, SenderTooLong

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.figures.traffic import Traffic
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.publishing.address_mixes import ReadMix
    from pubsub.broker.publishing.permitted_topics import PermittedTopics
    from pubsub.broker.publishing.rate_limits import RateLimiter
    from pubsub.broker.routing.batch import Batch, Headers
    from pubsub.broker.routing.dispatcher import Dispatcher
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore
    from pubsub.kernel import Columns, HeadTable, Senders


def publish_mix(
    dispatcher: Dispatcher,
    mix: ReadMix,
    columns: Columns,
    sender: bytes | Senders,
    protocol: str,
    limiters: Sequence[RateLimiter],
    headers: Sequence[Headers] | None = None,
    publisher: PublisherTally | None = None,
) -> Batch | None:
    """Publish messages of the topics of ``mix``, which the client may publish to, at once.

    Returns None, and has published nothing, if the ``limiters`` do not admit all messages, if the
    history is not available, or if the messages cannot be published together (see
    ``Dispatcher.takes``).
    """
    if not dispatcher.takes(mix, sender):
        return None
    for limiter in limiters:
        if limiter.admissible(columns, sender, headers) < columns.count:
            return None
    try:
        batch = dispatcher.publish_mixed(mix, columns, sender, protocol, headers, publisher)
    except HistoryUnavailable:
        return None
    for limiter in limiters:
        limiter.take(columns.count, messages_nbytes(columns, sender, headers))
    return batch


class PublishingRules(Protocol):
    """The listener, as a publisher uses it."""

    protocol: str
    access: AccessRules
    memory: MemoryBudget
    store: IStore
    router: Router

    @property
    def traffic(self) -> Traffic: ...


class PublishingConnection(Protocol):
    """A connection that publishes; ``publisher`` is set by ``Listener.publisher``."""

    publisher: Publisher | None

    @property
    def access(self) -> AccessRules | None:
        """The rights of the client; None for those of a client of which nothing is known."""

    def hold(self, reason: object) -> None: ...

    def release(self, reason: object) -> None: ...


class Publisher(PublisherTally):
    """Publishes for one connection, as ``sender``, by the listener's ``rules``.

    ``connection`` is held while a topic that it publishes to is blocked by a slow subscriber, while
    the process is at its memory bound, or while the history or the backplane is behind. With None
    (the sender of a datagram cannot be held) such messages are refused as RateLimited instead. It
    is also held while messages are being written to very many subscribers (see ``Router.gate``).
    ``messages`` and ``nbytes`` count accepted messages and the bytes of their payloads. ``access``
    is that of the connection. It is requested with the first message, because a handshake may prove
    the client's identity.
    """

    __slots__ = (
        "_access",
        "_connection",
        "_dispatcher",
        "_gathers",
        "_limiters",
        "_permitted",
        "_rules",
        "sender",
    )

    topic: Topic | None

    def __init__(
        self,
        rules: PublishingRules,
        dispatcher: Dispatcher,
        limiters: tuple[RateLimiter, ...],
        connection: PublishingConnection | None,
        sender: bytes,
    ) -> None:
        super().__init__(rules.traffic.accepted)
        self.sender = sender
        self._rules = rules
        self._dispatcher = dispatcher
        self._limiters = limiters
        self._connection = connection
        self._access: AccessRules | None = None
        self._permitted: PermittedTopics | None = None
        # Otherwise each message may have to be refused.
        self._gathers = not limiters and connection is not None

    @property
    def access(self) -> AccessRules:
        """The rights of the client."""
        if self._access is None:
            connection = self._connection
            access = None if connection is None else connection.access
            self._access = access or self._rules.access
        return self._access

    @access.setter
    def access(self, access: AccessRules) -> None:
        self._access = access

    def publish(
        self,
        topic: Topic,
        columns: Columns,
        headers: Sequence[Headers] | None = None,
        sender: bytes | None = None,
    ) -> Batch:
        """Publish messages of one topic; ``headers`` has one mapping for each of them.

        Returns the accepted messages: all, or those before the first that a rate limit
        refused. ``sender`` replaces the connection's own. Raises NotAuthorized, SenderTooLong,
        HistoryUnavailable, TopicUnreachable, or RateLimited if no message was accepted.
        """
        rules, connection = self._rules, self._connection
        if not (self._access or self.access).may_publish(topic.name):
            raise NotAuthorized(topic.name)
        if not topic.hosted and topic.upstream is None:
            # The first message creates the topic.
            self.access.check_create(topic.name)
        if sender is None:
            sender = self.sender
        if len(sender) > MAX_SENDER:
            raise SenderTooLong(len(sender))
        if connection is None and self._is_held(topic):
            raise RateLimited(
                "a subscriber, the memory bound, the history or the backplane holds this topic"
            )
        if self._limiters:
            admitted = self._admit(columns, sender, headers)
            if admitted < columns.count:
                columns = columns.slice(0, admitted)
                headers = None if headers is None else headers[:admitted]
        batch = self._dispatcher.publish(topic, columns, sender, rules.protocol, headers, self)
        if connection is not None:
            memory = rules.memory
            if topic.blockers:
                topic.wait(connection)
            # Same as `memory.full`, without the call.
            if memory.limit and memory.used >= memory.limit:
                memory.wait(connection)
            if topic.durability and rules.store.gate.shut:
                rules.store.gate.wait(connection)
            if rules.router.gate.shut:
                rules.router.gate.wait(connection)
            forwarding = rules.router.forwarding
            if forwarding is not None and forwarding.gate.shut:
                forwarding.gate.wait(connection)
        return batch

    def _is_held(self, topic: Topic) -> bool:
        """Return whether a publisher of ``topic`` would be held, if it can be."""
        rules, forwarding = self._rules, self._rules.router.forwarding
        return bool(
            topic.blockers
            or rules.memory.full
            or (topic.durability and rules.store.gate.shut)
            or (forwarding is not None and forwarding.gate.shut)
        )

    def publish_soon(self, topic: Topic, columns: Columns, sender: bytes | None = None) -> bool:
        """Publish messages of one topic at the end of the tick, with those of others.

        For messages after others of their tick (see ``Router.gathers``). Returns False if that
        cannot be; then nothing has been published. ``sender`` replaces the connection's own. Raises
        NotAuthorized.
        """
        if sender is None:
            sender = self.sender
        if not self._gathers or len(sender) > MAX_SENDER or columns.nbytes > MOST_BYTES:
            return False
        access, gathering = self._access or self.access, self._dispatcher.gathering
        protocol = self._rules.protocol
        if not gathering.is_open and not gathering.begin(topic.durability, protocol):
            return False
        if topic is not gathering.topic or access.known_view is not gathering.permitted:
            if not access.may_publish(topic.name):
                raise NotAuthorized(topic.name)
            if not gathering.may_take(topic):
                return False
            gathering.topic, gathering.permitted = topic, access.known_view
        if self.topic is not topic:
            self.topic = topic
            self.link(topic)
        return gathering.queue.put(columns, sender, protocol, self)

    def publish_mixed_soon(
        self, topics: Sequence[Topic], columns: Columns, sender: bytes | None = None
    ) -> bool:
        """Do as ``publish_soon``, for messages of several ``topics``, of which they have indexes.

        Returns False, and raises nothing, also if the client may not publish to all of them.
        """
        if sender is None:
            sender = self.sender
        if not self._gathers or len(sender) > MAX_SENDER:
            return False
        gathering, protocol = self._dispatcher.gathering, self._rules.protocol
        if not gathering.is_open and not gathering.begin(topics[0].durability, protocol):
            return False
        if not self.access.may_publish_all(tuple([topic.name for topic in topics]), False):
            return False
        if not gathering.may_take_all(topics):
            return False
        return gathering.queue.put_mixed(columns, tuple(topics), sender, protocol, self)

    def use_permitted(self, permitted: PermittedTopics) -> None:
        """Have ``publish_alike`` take messages of the ``permitted`` topics from ``sender``."""
        self._permitted = permitted

    def publish_alike(self, heads: HeadTable, data: bytes) -> bool:
        """Publish a read as ``publish_soon`` does, if nothing of it has to be looked at.

        That is so if ``data`` is messages of topics that are known to be permitted (see
        ``PermittedTopics``). Or it is one message with the address of the client's last messages
        that were published soon, if others are gathered now, and if the client may still publish to
        its topic. Its sender is that of those last messages. Returns False otherwise; then nothing
        has been published.
        """
        access, gathering, topic = self._access, self._dispatcher.gathering, self.topic
        if access is None:
            return False
        permitted = self._permitted
        if (
            permitted is not None
            and permitted.seen == state_changes.count
            and permitted.view is access.known_view
            and len(data) <= MOST_READ
            and gathering.takes(permitted.durability, protocol := self._rules.protocol)
        ):
            columns, topics = heads.scan(data), permitted.by_address
            if columns.end == len(data) and gathering.queue.put_known(
                columns, topics, self.sender, protocol, self
            ):
                return True
        if topic is not gathering.topic or access.known_view is not gathering.permitted:
            if topic is None or not gathering.is_open:
                return False
            if not (gathering.may_take(topic) and access.may_publish(topic.name)):
                return False
            gathering.topic, gathering.permitted = topic, access.known_view
        return heads.put_alike(data, gathering.queue, self)

    def publish_mixed(
        self, mix: ReadMix, columns: Columns, sender: bytes | Senders | None = None
    ) -> Batch | None:
        """Publish messages of several topics at once if nothing requires to look at each of them.

        Returns None, and has published nothing, if a topic may not be published to, or for the
        reasons of ``publish_mix``: then the messages are to be published one topic after another,
        in their order. This broker hosts all of the topics. ``sender`` replaces the connection's
        own.
        """
        if not self.access.may_publish_all(mix.names, mix.lasts):
            return None
        return self.publish_permitted(mix, columns, self.sender if sender is None else sender)

    def publish_permitted(
        self, mix: ReadMix, columns: Columns, sender: bytes | Senders
    ) -> Batch | None:
        """Do as ``publish_mixed``, for messages whose senders are known to have the rights."""
        rules, connection = self._rules, self._connection
        longest = len(sender) if isinstance(sender, bytes) else max(map(len, sender[1]))
        if connection is None or longest > MAX_SENDER:
            return None
        batch = publish_mix(
            self._dispatcher, mix, columns, sender, rules.protocol, self._limiters, publisher=self
        )
        if batch is None:
            return None
        if not mix.uniform:
            for topic in mix.topics:
                if topic.blockers:
                    topic.wait(connection)
        if rules.memory.full:
            rules.memory.wait(connection)
        if rules.store.gate.shut and mix.durability:
            rules.store.gate.wait(connection)
        if rules.router.gate.shut:
            rules.router.gate.wait(connection)
        if rules.router.forwarding is not None and rules.router.forwarding.gate.shut:
            rules.router.forwarding.gate.wait(connection)
        return batch

    def _admit(self, columns: Columns, sender: bytes, headers: Sequence[Headers] | None) -> int:
        """Return how many messages every limiter admits, and charge for them."""
        admitted = columns.count
        for limiter in self._limiters:
            admitted = min(admitted, limiter.admissible(columns, sender, headers))
        if not admitted:
            raise RateLimited(self._rules.protocol)
        if admitted < columns.count:
            nbytes = sum(message_sizes(columns, sender, headers)[:admitted])
        else:
            nbytes = messages_nbytes(columns, sender, headers)
        for limiter in self._limiters:
            limiter.take(admitted, nbytes)
        return admitted
