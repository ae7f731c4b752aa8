"""rheos's client ids: their subscriptions, and the connection that receives their messages.

A subscription belongs to a client id, not to a connection (rheos §4). The messages of an id are
delivered on the latest open connection on which the id was used. When the id is used on another
connection, or that connection closes, its subscriptions move. An id without a connection is kept
for the resume window.

Where the transport proves identities, an id belongs to the identity that was first to prove itself
with it, for as long as the id is known. Senders are shown by their ids, so ids are not secret.

An id may have thousands of subscriptions, and one read may name hundreds of ids. So subscriptions
move one by one, in slices: each has one destination at any time, and gets there within some ticks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pubsub.broker.clients.session_sharing import known_topics
from pubsub.errors import LimitReached, NotAuthorized
from pubsub.protocols.rheos.message_destination import ClientId

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.clients.session_sharing import SessionContent
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.publisher import Publisher
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.kernel import Columns
    from pubsub.protocols.rheos.message_destination import IdSharing, MessageDestination

# Estimated cost of a client id and of one of its subscriptions, for the memory budget.
CLIENT_BYTES = 768
SUBSCRIPTION_BYTES = 256


class Clients:
    """All client ids of one listener that are in use or kept.

    An id is not valid on other listeners, whose rules may be stricter.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._clients: dict[bytes, ClientId] = {}
        # Ids without a connection. Insertion order is expiry order: all have the same window.
        self._kept: dict[bytes, ClientId] = {}
        self._topics_ended = 0
        self.shared: IdSharing
        """Shares them with other brokers; set by it."""
        listener.topics.watch_removal(self._topic_ended)
        listener.sessions.at_stop.append(self._stop)

    def _stop(self) -> None:
        """The broker is stopping: no client is kept for another connection."""
        for client in list(self._kept.values()):
            self.drop_kept(client)

    def _topic_ended(self, topic: Topic) -> None:
        self._topics_ended += 1

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client_id: bytes) -> bool:
        return client_id in self._clients

    # Connections

    def use(self, client_id: bytes, destination: MessageDestination) -> ClientId:
        """Return the client for an id used at ``destination``.

        Its subscriptions are to be moved there (see ``move``). Raises NotAuthorized if the id is
        another's, LimitReached or MemoryExhausted.
        """
        client = self._clients.get(client_id) or self._make(client_id)
        self._claim(client, destination)
        if client.expiry is not None:
            client.expiry.cancel()
            client.expiry = None
            del self._kept[client_id]
        client.destinations.append(destination)
        destination.clients[client_id] = client
        if client.key and len(client.destinations) == 1:
            # Other brokers have read that it has no connection, and where it continued then.
            self.shared.changed(client)
        return client

    def _claim(self, client: ClientId, destination: MessageDestination) -> None:
        """Check that ``client`` may be used at ``destination``.

        The first identity that is proved takes the id from anonymous clients.
        """
        owner = destination.owner
        if client.owner == owner:
            return
        if client.owner is not None:
            raise NotAuthorized(client.sender.decode())
        client.owner = owner
        others, client.destinations = client.destinations, []
        for other in others:
            del other.clients[client.id]

    def leave(self, clients: Iterable[ClientId], destination: MessageDestination) -> Work:
        """The connection of ``destination`` has ended: return the work that is left to do.

        The subscriptions move to the connections before it, where there are any.
        """
        destination.closed = True
        clients, moving = list(clients), []
        if self.shared.enabled:
            self._note_starts(clients, destination)
        for client in clients:
            client.destinations.remove(destination)
            if client.destinations:
                moving.append(client)
            else:
                self._keep(client)
        return self._leave(moving, destination)

    def _note_starts(self, clients: Iterable[ClientId], destination: MessageDestination) -> None:
        """Note where the subscriptions at ``destination``, which is closed, continue."""
        starts = destination.shut()
        for client in clients:
            for topic, at in client.topics.items():
                if at is destination and topic in starts:
                    client.starts[topic] = starts[topic]

    def lose(self, client: ClientId, keep: bool = True) -> Work:
        """The client uses another broker: nothing is delivered here any more.

        It is forgotten unless the broker is to ``keep`` it.
        """
        destinations, client.destinations = client.destinations, []
        for destination in destinations:
            destination.clients.pop(client.id, None)
            destination.known_ids.discard(client.id)
        for topic in tuple(client.topics):
            at = client.topics.get(topic)
            if at is not None:
                found = None if at.closed else at.discard(client, topic)
                if not at.closed:
                    end: int = self._listener.store.next_offset
                    client.starts[topic] = end if found is None else found
                client.topics[topic] = None
            yield
        if client.destinations or self._clients.get(client.id) is not client:
            # It is used here again, or has been forgotten meanwhile.
            return
        if not keep:
            self.drop_kept(client)
            if self._clients.get(client.id) is client:
                self._drop(client)
        elif destinations:
            self._keep(client)

    def drop_kept(self, client: ClientId) -> None:
        """Forget a client without a connection."""
        if client.id in self._kept:
            if client.expiry is not None:
                client.expiry.cancel()
            self._expired(client)

    def restore(
        self, client_id: bytes, owner: tuple[str, str] | None, starts: dict[Topic, Position]
    ) -> ClientId:
        """Keep a client that was another broker's; raises LimitReached or MemoryExhausted."""
        client = self._make(client_id)
        client.owner, client.starts = owner, starts
        client.topics = dict.fromkeys(starts)
        self._listener.memory.add(SUBSCRIPTION_BYTES * len(starts))
        self._keep(client)
        return client

    def merge(self, client: ClientId, content: SessionContent) -> Work:
        """Go on with the subscriptions of ``client`` that another broker had; see ``SharedClient``.

        Messages that were delivered here since come again if the other broker had the topic too.
        """
        topics = self._listener.topics
        starts = known_topics(content, lambda name: topics.create(name, hosted=False))
        for topic, start in starts.items():
            if self._clients.get(client.id) is not client:
                return
            destination = client.topics.get(topic)
            if topic not in client.topics:
                self._listener.memory.add(SUBSCRIPTION_BYTES)
            elif destination is not None and not destination.closed:
                destination.discard(client, topic)
            client.topics[topic], client.starts[topic] = None, start
            if client.destinations:
                self._move(client, topic)
            yield
        self.shared.changed(client)

    def _leave(self, moving: Iterable[ClientId], destination: MessageDestination) -> Work:
        yield from self.move(moving)
        yield from destination.release()

    def _keep(self, client: ClientId) -> None:
        """Keep a client without a connection, if it has state to resume."""
        window = self._listener.sessions.window
        if client.topics and window:
            self._kept[client.id] = client
            client.expiry = self._listener.clock.callLater(window, self._expired, client)
            self.shared.changed(client)
        else:
            self._drop(client)

    def _make(self, client_id: bytes) -> ClientId:
        if len(self._clients) >= self._listener.sessions.limit:
            oldest = next(iter(self._kept.values()), None)
            if oldest is None or oldest.expiry is None:
                raise LimitReached("client ids")
            oldest.expiry.cancel()
            self._expired(oldest)
        self._listener.memory.reserve(CLIENT_BYTES)
        client = self._clients[client_id] = ClientId(client_id)
        return client

    def _expired(self, client: ClientId) -> None:
        del self._kept[client.id]
        self._drop(client)

    def _drop(self, client: ClientId) -> None:
        del self._clients[client.id]
        self.shared.ended(client)
        self._listener.memory.free(CLIENT_BYTES + SUBSCRIPTION_BYTES * len(client.topics))

    def move(self, clients: Iterable[ClientId]) -> Work:
        """Move deliveries to the latest connection of each client, a subscription a step.

        ``clients`` may grow meanwhile.
        """
        for client in clients:
            for topic in tuple(client.topics):
                self._move(client, topic)
                yield

    def _move(self, client: ClientId, topic: Topic) -> None:
        """Move a subscription to the latest connection, if the rules still permit it."""
        # Messages published before are for the destination until now. This can evict a slow
        # subscriber, and so end connections of this same client.
        self._listener.router.flush()
        if topic not in client.topics:
            return
        destination = client.topics[topic]
        if destination is not None and destination.closed:
            destination = client.topics[topic] = None
        if client.destinations and client.destinations[-1] is destination:
            return
        start: Position | None = client.starts.pop(topic, None)
        if destination is not None:
            client.topics[topic] = None
            start = destination.discard(client, topic)
        if not self._listener.topics.holds(topic):
            self._forget(client, topic)
        elif client.destinations and not client.destinations[-1].access.may_subscribe(topic.name):
            self._listener.refuse("revoked", client.sender.decode())
            self._forget(client, topic)
        elif client.destinations:
            client.topics[topic] = client.destinations[-1]
            client.destinations[-1].add(client, topic, start)

    # Subscriptions

    def subscribe(self, client: ClientId, topic: Topic, access: AccessRules) -> None:
        """Subscribe by the rules of the requesting connection, ``access``.

        Raises NotAuthorized, LimitReached or MemoryExhausted.
        """
        access.check_subscribe(topic.name)
        if topic not in client.topics:
            self._make_room(client)
            self._listener.memory.reserve(SUBSCRIPTION_BYTES)
            client.topics[topic] = None
            self.shared.changed(client)
        self._move(client, topic)

    def revoked(self, destination: MessageDestination, topic: Topic) -> None:
        """End the subscriptions to ``topic`` at ``destination``, which are no longer permitted."""
        for client in destination.clear(topic):
            client.topics[topic] = None
            self._forget(client, topic)

    def publish(
        self, client: ClientId, publisher: Publisher, topic: Topic, columns: Columns
    ) -> Batch:
        """Publish to all subscribers but ``client`` itself; see ``Publisher.publish``."""
        destination = client.topics.get(topic)
        if destination is None or destination.closed:
            return publisher.publish(topic, columns, sender=client.sender)
        with destination.excluding(client, topic):
            return publisher.publish(topic, columns, sender=client.sender)

    def _make_room(self, client: ClientId) -> None:
        """Drop subscriptions to topics that have ended, if the limit is reached."""
        limit: int = self._listener.settings["max-subscriptions"]
        if len(client.topics) < limit:
            return
        if client.pruned != self._topics_ended:
            client.pruned = self._topics_ended
            for topic in [
                topic for topic in client.topics if not self._listener.topics.holds(topic)
            ]:
                self._forget(client, topic)
        if len(client.topics) >= limit:
            raise LimitReached("subscriptions")

    def _forget(self, client: ClientId, topic: Topic) -> None:
        destination = client.topics.pop(topic)
        client.starts.pop(topic, None)
        if destination is not None and not destination.closed:
            destination.discard(client, topic)
        self._listener.memory.free(SUBSCRIPTION_BYTES)
        if client.key:
            self.shared.changed(client)
