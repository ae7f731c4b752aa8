"""rheos's client ids: their subscriptions, and the connection that receives their messages.

A subscription belongs to a client id, not to a connection (rheos §4). The messages of an id are
delivered on the latest open connection on which the id was used. When the id is used on another
connection, or that connection closes, its subscriptions move. An id without a connection is kept
for the resume window.

Where the transport proves identities, an id belongs to the identity that was first to prove itself
with it, for as long as the id is known. Senders are shown by their ids, so that ids are no secret.

An id may have thousands of subscriptions, and one read may name hundreds of ids. So subscriptions
move one by one, in slices: each is at one place at any time, and gets there within some ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from pubsub.errors import LimitReached, NotAuthorized
from pubsub.protocols.rheos.delivery import PROTOCOL, client_name

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from pubsub.broker.access import AccessRules
    from pubsub.broker.batch import Batch
    from pubsub.broker.listener import Listener
    from pubsub.broker.publisher import Publisher
    from pubsub.broker.slices import Work
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Encoding
    from pubsub.kernel import Columns
    from pubsub.wire.connection import Connection

# Estimated cost of a client id and of one of its subscriptions, for the memory budget.
CLIENT_BYTES = 768
SUBSCRIPTION_BYTES = 256


class Client:
    """A client id in use. ``places`` are its connections, the latest last; ``sender`` is the id as
    other protocols show it. ``owner`` is the proof and the name of the identity that it belongs to,
    or None while only anonymous clients have used it.

    ``topics`` has the place at which the messages of each topic are delivered; None is nowhere.
    """

    __slots__ = ("expiry", "id", "owner", "places", "pruned", "sender", "topics")

    def __init__(self, client_id: bytes) -> None:
        self.id = client_id
        self.sender = client_name(client_id).encode()
        self.topics: dict[Topic, Place | None] = {}
        self.places: list[Place] = []
        self.owner: tuple[str, str] | None = None
        # How many topics of the broker had ended when those among the subscriptions were dropped.
        self.pruned = 0
        self.expiry: IDelayedCall | None = None


class Place:
    """A connection as a destination of messages.

    Several client ids may share it. A topic's messages are delivered once, even if several of them
    are subscribed.
    """

    __slots__ = (
        "_connection", "_encoding", "_open_outbox", "_readers", "_router", "clients", "closed",
    )  # fmt: skip

    def __init__(
        self,
        listener: Listener,
        connection: Connection,
        encoding: Callable[[Topic], Encoding],
    ) -> None:
        self._router = listener.router
        self._connection = connection
        self._open_outbox = connection.open_outbox
        self._encoding = encoding
        self._readers: dict[Topic, set[Client]] = {}
        self.clients: dict[bytes, Client] = {}
        """The client ids that are used here."""
        self.closed = False
        """True if the connection has ended."""

    @property
    def access(self) -> AccessRules:
        """The rights of the client at the other end."""
        return self._connection.access

    @property
    def owner(self) -> tuple[str, str] | None:
        """The proof and the name of the client's identity; None if it is anonymous."""
        identity = self._connection.identity
        return None if identity.is_anonymous else (identity.proof, identity.name)

    def add(self, client: Client, topic: Topic, offset: int | None = None) -> None:
        """Deliver ``topic`` here for ``client``: the history from ``offset`` on, if given."""
        self._readers.setdefault(topic, set()).add(client)
        self._router.subscribe(self._open_outbox(), topic, self._encoding(topic), offset)

    def discard(self, client: Client, topic: Topic) -> int | None:
        """Stop delivering ``topic`` here for ``client``.

        Returns the offset of the first message that was not delivered here, if this connection is
        behind.
        """
        readers, outbox = self._readers.get(topic, set()), self._open_outbox()
        self._router.complete(outbox)
        position = None if outbox.cursor is None else outbox.cursor.position(topic)
        readers.discard(client)
        if not readers:
            self._readers.pop(topic, None)
            self._router.unsubscribe(outbox, topic)
        return position

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """Return whether a client that reads ``topic`` here has not sent ``batch`` itself."""
        readers = self._readers.get(topic, set())
        return batch.protocol != PROTOCOL or any(one.sender != batch.sender for one in readers)

    def release(self) -> Work:
        """Forget all readers; the connection has ended."""
        while self._readers:
            self._readers.popitem()
            yield

    def clear(self, topic: Topic) -> set[Client]:
        """Remove and return the clients that read ``topic`` here."""
        return self._readers.pop(topic, set())

    def excluding(self, client: Client, topic: Topic) -> AbstractContextManager[None]:
        """Return a context in which messages on ``topic`` are not delivered for ``client``.

        They are delivered if another client id reads the topic here.
        """
        if self._readers.get(topic) == {client}:
            return self._router.excluding(self._open_outbox(), topic)
        return nullcontext()


class Clients:
    """All client ids of one listener that are in use or kept.

    An id is not valid on other listeners, whose rules may be stricter.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._clients: dict[bytes, Client] = {}
        # Ids without a connection. Insertion order is expiry order: all have the same window.
        self._kept: dict[bytes, Client] = {}
        self._topics_ended = 0
        listener.topics.watch_removal(self._topic_ended)

    def _topic_ended(self, topic: Topic) -> None:
        self._topics_ended += 1

    def __len__(self) -> int:
        return len(self._clients)

    # Connections

    def use(self, client_id: bytes, place: Place) -> Client:
        """Return the client for an id used at ``place``.

        Its subscriptions are to be moved there (see ``move``). Raises NotAuthorized if the id is
        another's, LimitReached or MemoryExhausted.
        """
        client = self._clients.get(client_id) or self._make(client_id)
        self._claim(client, place)
        if client.expiry is not None:
            client.expiry.cancel()
            client.expiry = None
            del self._kept[client_id]
        client.places.append(place)
        place.clients[client_id] = client
        return client

    def _claim(self, client: Client, place: Place) -> None:
        """Check that ``client`` may be used at ``place``.

        The first identity that is proved takes the id from anonymous clients.
        """
        owner = place.owner
        if client.owner == owner:
            return
        if client.owner is not None:
            raise NotAuthorized(client.sender.decode())
        client.owner = owner
        others, client.places = client.places, []
        for other in others:
            del other.clients[client.id]

    def leave(self, clients: Iterable[Client], place: Place) -> Work:
        """The connection of ``place`` has ended: return the work that is left to do.

        The subscriptions move to the connections before it, where there are any.
        """
        place.closed = True
        moving = []
        for client in clients:
            client.places.remove(place)
            if client.places:
                moving.append(client)
            else:
                self._keep(client)
        return self._leave(moving, place)

    def _leave(self, moving: Iterable[Client], place: Place) -> Work:
        yield from self.move(moving)
        yield from place.release()

    def _keep(self, client: Client) -> None:
        """Keep a client without a connection, if it can come back to something."""
        window = self._listener.sessions.window
        if client.topics and window:
            self._kept[client.id] = client
            client.expiry = self._listener.clock.callLater(window, self._expired, client)
        else:
            self._drop(client)

    def _make(self, client_id: bytes) -> Client:
        if len(self._clients) >= self._listener.sessions.limit:
            oldest = next(iter(self._kept.values()), None)
            if oldest is None or oldest.expiry is None:
                raise LimitReached("client ids")
            oldest.expiry.cancel()
            self._expired(oldest)
        self._listener.memory.reserve(CLIENT_BYTES)
        client = self._clients[client_id] = Client(client_id)
        return client

    def _expired(self, client: Client) -> None:
        del self._kept[client.id]
        self._drop(client)

    def _drop(self, client: Client) -> None:
        del self._clients[client.id]
        self._listener.memory.free(CLIENT_BYTES + SUBSCRIPTION_BYTES * len(client.topics))

    def move(self, clients: Iterable[Client]) -> Work:
        """Move deliveries to the latest connection of each client, a subscription a step.

        ``clients`` may grow meanwhile.
        """
        for client in clients:
            for topic in tuple(client.topics):
                self._move(client, topic)
                yield

    def _move(self, client: Client, topic: Topic) -> None:
        """Move a subscription to the latest connection, if the rules still permit it."""
        # Messages published before are for the place until now. This can evict a slow subscriber,
        # and so end connections of this same client.
        self._listener.router.flush()
        if topic not in client.topics:
            return
        place = client.topics[topic]
        if place is not None and place.closed:
            place = client.topics[topic] = None
        if client.places and client.places[-1] is place:
            return
        offset: int | None = None
        if place is not None:
            client.topics[topic] = None
            offset = place.discard(client, topic)
        if not self._listener.topics.holds(topic):
            self._forget(client, topic)
        elif client.places and not client.places[-1].access.may_subscribe(topic.name):
            self._listener.refuse("revoked", client.sender.decode())
            self._forget(client, topic)
        elif client.places:
            client.topics[topic] = client.places[-1]
            client.places[-1].add(client, topic, offset)

    # Subscriptions

    def subscribe(self, client: Client, topic: Topic, access: AccessRules) -> None:
        """Subscribe by the rules of the requesting connection, ``access``.

        Raises NotAuthorized, LimitReached or MemoryExhausted.
        """
        access.check_subscribe(topic.name)
        if topic not in client.topics:
            self._make_room(client)
            self._listener.memory.reserve(SUBSCRIPTION_BYTES)
            client.topics[topic] = None
        self._move(client, topic)

    def revoked(self, place: Place, topic: Topic) -> None:
        """End the subscriptions to ``topic`` at ``place``, which are no longer permitted."""
        for client in place.clear(topic):
            client.topics[topic] = None
            self._forget(client, topic)

    def publish(
        self, client: Client, publisher: Publisher, topic: Topic, columns: Columns
    ) -> Batch:
        """Publish to all subscribers but ``client`` itself; see ``Publisher.publish``."""
        place = client.topics.get(topic)
        if place is None or place.closed:
            return publisher.publish(topic, columns, sender=client.sender)
        with place.excluding(client, topic):
            return publisher.publish(topic, columns, sender=client.sender)

    def _make_room(self, client: Client) -> None:
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

    def _forget(self, client: Client, topic: Topic) -> None:
        place = client.topics.pop(topic)
        if place is not None and not place.closed:
            place.discard(client, topic)
        self._listener.memory.free(SUBSCRIPTION_BYTES)
