"""rheos's connections: many requests, one acknowledgment each, in order."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from pubsub.broker.clients.frame_turns import RUNS, TURN_BYTES
from pubsub.broker.publishing.senders import sender_of
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import LimitReached, RateLimited, Refused, TopicExists
from pubsub.kernel import Columns
from pubsub.protocols.rheos.acknowledgments import Acks
from pubsub.protocols.rheos.codec import (
    HEADER_SIZE,
    SUCCESS,
    Ack,
    Fault,
    Opcode,
    Request,
    RheosError,
)
from pubsub.protocols.rheos.listener_state import PARENTS
from pubsub.protocols.rheos.message_destination import ClientId, MessageDestination
from pubsub.protocols.rheos.message_heads import Source, request_bytes
from pubsub.protocols.rheos.refusals import reason_of
from pubsub.protocols.rheos.response_encoding import client_name
from pubsub.wire.connection import Connection
from pubsub.wire.replies import all_of, confirmed_by_host, stored_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.publisher import Publisher
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.slices import SlicedWork
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.protocols.rheos.listener_state import ListenerState


_client_id_of: Callable[[Source], bytes] = attrgetter("client_id")


class RheosConnection(Connection):
    """A connection, which several client ids may share."""

    _latest = b""
    _publisher: Publisher | None = None
    # The clients whose subscriptions are on their way here, and the work that moves them.
    _arriving: list[ClientId] | None = None
    _moving: SlicedWork | None = None
    # True while other brokers are asked for client ids.
    _looking = False

    def __init__(self, listener: Listener, shared: ListenerState) -> None:
        super().__init__(listener)
        self._shared = shared
        self._destination = MessageDestination(listener, self, shared.encoding)

    @property
    def label(self) -> str:
        """See ``Connection``."""
        return f"{client_name(self._latest)}@{self.peer}" if self._latest else self.peer

    # Input

    def consume(self, data: bytes) -> tuple[int, int]:
        """See ``Connection``. All the acknowledgments of a read are one write."""
        codec = self._shared.codec
        replies = Acks(codec, self.listener.dispatcher.run_id)
        at, need, over = 0, HEADER_SIZE, False
        while not (over or self.closing or self._looking):
            before = at
            stop = at + TURN_BYTES if self.takes_turns else len(data)
            columns, at = self._shared.scan(data[:stop], at)
            ids = set(map(_client_id_of, columns.addresses))
            if ids and self._look_up(ids):
                at = before
                break
            if len(columns.addresses) > 1:
                done = self._publish_mixed(columns, ids, replies)
                if done is not None:
                    at = before + done
                    break
            elif columns.count:
                self._publish(columns.addresses[0], columns, replies)
            if self.closing or at == len(data):
                break
            if stop < len(data) and at > before:
                over = self.turn_over()
                continue
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
                self._shared.layout_hints.examine(data, at, self, bool(self._latest))
                replies.refused()
                if problem.end is None:
                    self._send(replies)
                    self.fail(problem.fault.value, b"", data[at:])
                    return at, need
                packet = data[at : problem.end]
                if problem.fault is not Fault.INVALID_OPERATION or not codec.is_probe(packet):
                    self.refuse(problem.fault.value, frame=packet)
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
        found = self._shared.shared_ids.look_up(ids, self._destination)
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
        client = self._shared.clients.use(client_id, self._destination)
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
        work = self.ending_on_error(self._shared.clients.move(self._arriving))
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
        """Handle a request that the scanner has not found, as every valid PUBLISH that it knows."""
        if request.opcode == Opcode.PUBLISH:
            source = Source(request.client_id, request.topic)
            self._publish(source, Columns.one(request.data), replies)
            return
        created = request.opcode == Opcode.CREATE
        try:
            name = topic_name(request.topic)
            client = self._client(request.client_id)
            if created:
                topic = self._create(client, name)
            else:
                topic = self.listener.topics.existing(name)
                self._shared.clients.subscribe(client, topic, self.access)
                self.listener.topics.keep(name)
        except TopicExists:
            # Not counted: clients send CREATE to be sure that the topic exists (rheos §6.1).
            replies.refused()
            return
        except Refused as refused:
            self._refuse(refused, request.topic, replies, 1)
            return
        codec = self._shared.codec
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

    def _publish_mixed(self, columns: Columns, ids: set[bytes], replies: Acks) -> int | None:
        """Publish messages of several sources, which have these client ids, in their order.

        Returns the bytes of the requests that were handled if others are to be served before the
        rest, and None if all were.
        """
        if self._publish_at_once(columns, ids, replies):
            return None
        done = 0
        for number, (_index, run) in enumerate(columns.runs(), 1):
            source = run.addresses[0]
            self._publish(source, run, replies)
            done += request_bytes(source, run, self._shared.codec)
            if number % RUNS == 0 and self.turn_over():
                return done
        return None

    def _publish_at_once(self, columns: Columns, ids: set[bytes], replies: Acks) -> bool:
        """Publish messages of these clients at once; False if that is not possible."""
        found = [self._destination.clients.get(client_id) for client_id in ids]
        clients = [client for client in found if client is not None]
        if self._publisher is None or len(clients) < len(found):
            return False
        # A client does not receive its own messages (rheos §5.4).
        subscribed = [client.topics for client in clients if client.topics]
        access = None if subscribed or len(clients) > 1 else self._publisher.access
        mixed = self._shared.mixes.find(columns, access=access)
        if mixed is None:
            return False
        mix = mixed[0]
        if not all(topics.keys().isdisjoint(mix.topics) for topics in subscribed):
            return False
        senders = {client.id: client.sender for client in clients}
        sender = sender_of(columns, [senders[source.client_id] for source in columns.addresses])
        batch = self._publisher.publish_mixed(*mixed, sender=sender)
        if batch is None:
            return False
        self._latest = columns.addresses[-1].client_id
        replies.accepted(batch.sequence, batch.count, mix.durability)
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
            topics = self.listener.topics
            topic = topics.existing(name)
            is_new = not topic.hosted
            batch = self._shared.clients.publish(client, self._publisher, topic, columns)
            if is_new:
                topics.keep(name)
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
        return self._shared.codec.failed

    def revoked(self, topic: Topic) -> None:
        """See ``Connection``; the protocol has no message for it."""
        self._shared.clients.revoked(self._destination, topic)

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``: a client does not receive its own messages (rheos §5.4)."""
        return self._destination.receives(topic, batch)

    def ended(self) -> None:
        """See ``Connection``."""
        if self._moving is not None:
            self._moving.stop()
        self._arriving = []
        clients, self._destination.clients = self._destination.clients, {}
        self.listener.slices.run(self._shared.clients.leave(clients.values(), self._destination))
        if self.outbox is not None and not self.outbox.closed:
            self.outbox.shut("disconnected")
