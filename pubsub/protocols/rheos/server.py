"""rheos's server: many requests a connection, one acknowledgment each, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory

from pubsub.broker.address_mixes import AddressMixes
from pubsub.broker.durability import Durability
from pubsub.broker.topic_names import topic_name
from pubsub.errors import LimitReached, RateLimited, Refused, TopicExists
from pubsub.kernel import Columns, Head
from pubsub.protocols.rheos.acknowledgments import Acks
from pubsub.protocols.rheos.client_ids import Clients
from pubsub.protocols.rheos.codec import (
    HEADER_SIZE,
    SUCCESS,
    Ack,
    Codec,
    Opcode,
    Request,
    RheosError,
)
from pubsub.protocols.rheos.layout_hints import LayoutHints
from pubsub.protocols.rheos.message_destination import ClientId, MessageDestination
from pubsub.protocols.rheos.message_heads import Source, learn_publish, unseal
from pubsub.protocols.rheos.refusals import reason_of
from pubsub.protocols.rheos.response_encoding import ResponseEncoding, client_name, encoding_of
from pubsub.protocols.rheos.shared_ids import SharedIds
from pubsub.settings import Setting, choice, integer
from pubsub.wire.connection import Connection, ConnectionFactory
from pubsub.wire.known_heads import KnownHeads
from pubsub.wire.replies import all_of, confirmed_by_host, stored_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twisted.internet.interfaces import IAddress

    from pubsub.broker.batch import Batch
    from pubsub.broker.listener import Listener
    from pubsub.broker.publisher import Publisher
    from pubsub.broker.slices import SlicedWork
    from pubsub.broker.topics import Topic

_BILLION = 10**9
SETTINGS: tuple[Setting, ...] = (
    Setting("layout", choice("spec", "original"), "spec", "layout of requests"),
    Setting(
        "checksum",
        choice("off", "crc32"),
        "off",
        "checksum at the end of requests and acknowledgments",
    ),
    Setting(
        "envelope",
        choice("none", "topic"),
        "none",
        "deliver messages alone, or with their topic's name",
    ),
    Setting("max-ids", integer(1, _BILLION), 1000, "client ids of a connection"),
    Setting("max-subscriptions", integer(0, _BILLION), 10_000, "subscriptions of a client id"),
)

PARENTS = "rheos-parents"
"""The table of the store's metadata with the client id that created each topic."""


class RheosConnection(Connection):
    """A connection, which several client ids may share."""

    _latest = b""
    _publisher: Publisher | None = None
    # The clients whose subscriptions are on their way here, and the work that moves them.
    _arriving: list[ClientId] | None = None
    _moving: SlicedWork | None = None
    # True while other brokers are asked for client ids.
    _looking = False

    def __init__(self, listener: Listener, server: RheosFactory) -> None:
        super().__init__(listener)
        self._server = server
        self._destination = MessageDestination(listener, self, server.encoding)

    @property
    def label(self) -> str:
        """See ``Connection``."""
        return f"{client_name(self._latest)}@{self.peer}" if self._latest else self.peer

    # Input

    def consume(self, data: bytes) -> tuple[int, int]:
        """See ``Connection``. All the acknowledgments of a read are one write."""
        codec = self._server.codec
        replies = Acks(codec, self.listener.dispatcher.run_id)
        at, need, over = 0, HEADER_SIZE, False
        while not (over or self.closing or self._looking):
            before = at
            columns, at = self._server.scan(data, at)
            if columns.count and self._look_up([one.client_id for one in columns.addresses]):
                at = before
                break
            if len(columns.addresses) > 1:
                self._publish_mixed(columns, replies)
            elif columns.count:
                self._publish(columns.addresses[0], columns, replies)
            if self.closing or at == len(data):
                break
            try:
                decoded = codec.decode(data, at)
                if decoded is None:
                    need = codec.needed(data, at)
                    break
                if self._look_up((decoded[0].client_id,)):
                    break
                request, at = decoded
                self._handle(request, replies)
            except RheosError as problem:
                self._server.layout_hints.examine(data, at, self)
                replies.refused()
                if problem.end is None:
                    self._send(replies)
                    self.fail(problem.fault.value, b"", data[at:])
                    return at, need
                self.refuse(problem.fault.value, frame=data[at : problem.end])
                at = problem.end
            over = self.turn_over()
        if replies and not self.closing:
            self._send(replies)
        return at, need

    def _send(self, replies: Acks) -> None:
        data, failed = replies.take()
        if not replies.remote:
            self.reply_when_stored(replies.durability, data, failed)
            return
        conditions = [confirmed_by_host(topic) for topic in replies.remote.values()]
        conditions.append(stored_in(self.listener.store, replies.durability))
        self.reply_when(all_of(conditions), data, failed)

    def _look_up(self, ids: Iterable[bytes]) -> bool:
        """Look for unknown ids at other brokers; return whether further requests wait."""
        found = self._server.shared_ids.look_up(ids, self._destination)
        if found is None or found.called:
            return False
        self._looking = True
        self.hold("resuming")
        found.addCallback(self._looked_up)
        return True

    def _looked_up(self, result: object) -> None:
        self._looking = False
        self.release("resuming")
        self.parse_buffered()

    def shared_sessions(self) -> Iterable[str]:
        """Return the keys of the sessions whose messages are delivered here."""
        return [client.key for client in self._destination.clients.values() if client.key]

    def _client(self, client_id: bytes) -> ClientId:
        """Return the client of a request; raises the errors of ``Clients.use``."""
        self._latest = client_id
        clients = self._destination.clients
        client = clients.get(client_id)
        if client is not None:
            return client
        if len(clients) >= self.listener.settings["max-ids"]:
            raise LimitReached("client ids of a connection")
        client = self._server.clients.use(client_id, self._destination)
        if client.topics:
            self._move_here(client)
            if self.closing:
                # Evicted as too slow meanwhile.
                raise Refused("the connection has ended")
        return client

    def _move_here(self, client: ClientId) -> None:
        """Move the subscriptions of ``client`` here; read no further until that is done."""
        if self._arriving is not None:
            self._arriving.append(client)
            return
        self._arriving = [client]
        work = self._server.clients.move(self._arriving)
        self._moving = self.listener.slices.run(work, self._moved)
        if self._moving is None:
            self._arriving = None
        elif self.closing:
            self._moving.stop()
        else:
            self.hold("moving")

    def _moved(self) -> None:
        self._moving = self._arriving = None
        self.release("moving")

    # Requests

    def _handle(self, request: Request, replies: Acks) -> None:
        """Handle CREATE or SUBSCRIBE; the scanner finds every valid PUBLISH."""
        created = request.opcode == Opcode.CREATE
        try:
            name = topic_name(request.topic)
            client = self._client(request.client_id)
            if created:
                topic = self._create(client, name)
            else:
                topic = self.listener.topics.named(name)
                self._server.clients.subscribe(client, topic, self.access)
        except Refused as refused:
            self._refuse(refused, request.topic, replies, 1)
            return
        codec = self._server.codec
        durability = topic.durability if created else Durability.NONE
        replies.add(codec.encode(Ack(topic.uuid.bytes, SUCCESS)), durability)

    def _create(self, client: ClientId, name: str) -> Topic:
        listener = self.listener
        topics = listener.topics
        if name in topics:
            raise TopicExists(name)
        self.access.check_create(name)
        topic = topics.create(name)
        listener.store.put(PARENTS, name, client.id)
        return topic

    def _publish_mixed(self, columns: Columns, replies: Acks) -> None:
        """Publish messages of several sources in their order."""
        if not self._publish_at_once(columns, replies):
            for _index, run in columns.runs():
                self._publish(run.addresses[0], run, replies)

    def _publish_at_once(self, columns: Columns, replies: Acks) -> bool:
        """Publish messages of one client to several topics; False if that is not possible."""
        ids = {source.client_id for source in columns.addresses}
        mixed = self._server.mixes.find(columns) if len(ids) == 1 else None
        client = None if mixed is None else self._destination.clients.get(ids.pop())
        if mixed is None or client is None or self._publisher is None:
            return False
        mix = mixed[0]
        # A client does not receive its own messages (rheos §5.4).
        if not client.topics.keys().isdisjoint(mix.topics):
            return False
        batch = self._publisher.publish_mixed(*mixed, sender=client.sender)
        if batch is None:
            return False
        self._latest = client.id
        replies.accepted(
            batch.sequence, batch.count, max([topic.durability for topic in mix.topics])
        )
        return True

    def _publish(self, source: Source, columns: Columns, replies: Acks) -> None:
        """Publish messages of one source; each one gets an acknowledgment (rheos §5.3)."""
        if self.closing:
            return
        if self._publisher is None:
            self._publisher = self.listener.publisher(self, b"")
        try:
            name = topic_name(source.topic)
            client = self._client(source.client_id)
            topic = self.listener.topics.named(name)
            batch = self._server.clients.publish(client, self._publisher, topic, columns)
        except Refused as refused:
            self._refuse(refused, source.topic, replies, columns.count)
            return
        over_limit = columns.count - batch.count
        if topic.upstream is None:
            replies.accepted(batch.sequence, batch.count, topic.durability)
        else:
            replies.forwarded(batch.sequence, batch.count, topic, topic.upstream)
        if over_limit:
            self._refuse(RateLimited(), source.topic, replies, over_limit)

    def _refuse(self, refused: Refused, topic: bytes, replies: Acks, number: int) -> None:
        reason = reason_of(refused)
        self.refuse(reason, number, topic.decode(errors="replace"))
        replies.refused(number)

    # The end

    def refusal(self, refused: Refused) -> bytes:
        """See ``Connection``."""
        return self._server.codec.failed

    def revoked(self, topic: Topic) -> None:
        """See ``Connection``; the protocol has no message for it."""
        self._server.clients.revoked(self._destination, topic)

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``: a client does not receive its own messages (rheos §5.4)."""
        return self._destination.receives(topic, batch)

    def ended(self) -> None:
        """See ``Connection``."""
        if self._moving is not None:
            self._moving.stop()
        self._arriving = []
        clients, self._destination.clients = self._destination.clients, {}
        self.listener.slices.run(self._server.clients.leave(clients.values(), self._destination))
        if self.outbox is not None and not self.outbox.closed:
            self.outbox.shut("disconnected")


class RheosFactory(ConnectionFactory):
    """Builds the connections of one listener."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        settings = listener.settings
        self.codec = Codec(settings["layout"], settings["checksum"] == "crc32")
        self.mixes = AddressMixes(listener.router, self._topic_of)
        self._heads = KnownHeads(
            self._learn, listener.memory, listener.at_tick_end, self.mixes.clear
        )
        self.clients = Clients(listener)
        self.shared_ids = SharedIds(listener, self.clients)
        self.layout_hints = LayoutHints(listener)
        self._envelope = settings["envelope"] == "topic"
        listener.topics.watch_removal(lambda topic: listener.store.delete(PARENTS, topic.name))

    def scan(self, data: bytes, at: int) -> tuple[Columns, int]:
        """Return the messages whose requests follow one another from ``at`` on, and their end."""
        columns = self._heads.scan(data, at)
        if not self.codec.checksum:
            return columns, columns.end
        return unseal(columns, data, at, self.codec)

    def _learn(self, data: bytes, at: int) -> tuple[Head, Source] | None:
        return learn_publish(data, at, self.codec)

    def _topic_of(self, source: Source) -> Topic:
        return self.listener.topics.named(topic_name(source.topic))

    def encoding(self, topic: Topic) -> ResponseEncoding:
        """Return the encoding of ``topic`` on this listener."""
        return encoding_of(topic, self.codec, self._envelope)

    def buildProtocol(self, addr: IAddress | None) -> RheosConnection:
        """See IProtocolFactory."""
        return RheosConnection(self.listener, self)


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    return RheosFactory(listener)
