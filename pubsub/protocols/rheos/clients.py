"""rheos's client ids: what each is subscribed to, and the one connection its deliveries go to.

A subscription belongs to a client id, not to a connection (rheos §4). Of the open connections on
which an id was heard the latest is its place: there its messages go. When the id comes on another
one, or that one goes, its subscriptions move. Without any it is kept for the resume window.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from pubsub.errors import LimitReached
from pubsub.protocols.rheos.delivery import client_name

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from pubsub.broker.batch import Batch
    from pubsub.broker.listener import Listener
    from pubsub.broker.message_run import MessageRun
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.publisher import Publisher
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Encoding

# What a client id and one of its subscriptions cost, estimates for the memory budget.
CLIENT_BYTES = 768
SUBSCRIPTION_BYTES = 256


class Client:
    """A client id that was heard. ``places`` has its connections, the latest at the end;
    ``sender`` is the id as other protocols show it."""

    __slots__ = ("expiry", "id", "places", "sender", "topics")

    def __init__(self, client_id: bytes) -> None:
        self.id = client_id
        self.sender = client_name(client_id).encode()
        self.topics: dict[Topic, None] = {}
        self.places: list[Place] = []
        self.expiry: IDelayedCall | None = None


class Place:
    """A connection as somewhere that messages go.

    Several ids may share it. A topic's messages come once however many of them read it.
    """

    __slots__ = ("_encoding", "_open_outbox", "_readers", "_router")

    def __init__(
        self,
        listener: Listener,
        open_outbox: Callable[[], Outbox],
        encoding: Callable[[Topic], Encoding],
    ) -> None:
        self._router = listener.router
        self._open_outbox = open_outbox
        self._encoding = encoding
        self._readers: dict[Topic, set[Client]] = {}

    def add(self, client: Client, topic: Topic) -> None:
        """Messages of ``topic`` come here for ``client``."""
        self._readers.setdefault(topic, set()).add(client)
        self._router.subscribe(self._open_outbox(), topic, self._encoding(topic))

    def discard(self, client: Client, topic: Topic) -> None:
        """They do not any more."""
        readers = self._readers.get(topic, set())
        readers.discard(client)
        if not readers:
            self._readers.pop(topic, None)
            self._router.unsubscribe(self._open_outbox(), topic)

    def clear(self, topic: Topic) -> set[Client]:
        """Nobody here reads ``topic`` any more; returns who did."""
        return self._readers.pop(topic, set())

    def hushed(self, client: Client, topic: Topic) -> AbstractContextManager[None]:
        """What is published on ``topic`` meanwhile is not for ``client``.

        Where another id reads the topic here it comes all the same.
        """
        if self._readers.get(topic) == {client}:
            return self._router.excluding(self._open_outbox(), topic)
        return nullcontext()


class Clients:
    """Every client id of one listener that is in use or kept.

    An id means nothing on another listener, whose rules may be stricter.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._clients: dict[bytes, Client] = {}
        # Those without a connection. Insertion order is expiry order: the window is one for all.
        self._kept: dict[bytes, Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    # Connections

    def hear(self, client_id: bytes, place: Place) -> Client:
        """``client_id`` was first heard at ``place``; raises LimitReached or MemoryExhausted."""
        client = self._clients.get(client_id) or self._make(client_id)
        if client.expiry is not None:
            client.expiry.cancel()
            client.expiry = None
            del self._kept[client_id]
        old = client.places[-1] if client.places else None
        client.places.append(place)
        self._move(client, old)
        return client

    def leave(self, client: Client, place: Place) -> None:
        """The connection at ``place`` ends: deliveries go to the one before it, if any."""
        client.places.remove(place)
        self._move(client, place)
        if client.places or client.expiry is not None or client.id not in self._clients:
            # There is another, or it ended while subscriptions moved to it, and all this is done.
            return
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

    def _move(self, client: Client, old: Place | None) -> None:
        """Deliveries go to the latest connection instead of ``old``, if they still may.

        Messages of this turn are handed on meanwhile. That can be too much for a slow reader, and
        end connections of this very client.
        """
        for topic in tuple(client.topics):
            if old is not None:
                old.discard(client, topic)
            if topic not in client.topics:
                continue
            if not self._exists(topic):
                self._forget(client, topic)
            elif not self._listener.access.may_subscribe(topic.name):
                self._listener.refuse("revoked", client.sender.decode())
                self._forget(client, topic)
            elif client.places:
                client.places[-1].add(client, topic)

    # Subscriptions

    def subscribe(self, client: Client, topic: Topic) -> None:
        """Subscribe; raises NotAuthorized, LimitReached or MemoryExhausted."""
        self._listener.access.check_subscribe(topic.name)
        if topic not in client.topics:
            self._make_room(client)
            self._listener.memory.reserve(SUBSCRIPTION_BYTES)
            client.topics[topic] = None
        client.places[-1].add(client, topic)

    def revoked(self, place: Place, topic: Topic) -> None:
        """Whoever reads ``topic`` at ``place`` may not any more."""
        for client in place.clear(topic):
            self._forget(client, topic)

    def publish(self, client: Client, publisher: Publisher, topic: Topic, run: MessageRun) -> Batch:
        """Publish to all subscribers but ``client`` itself; see ``Publisher.publish``."""
        if topic not in client.topics:
            return publisher.publish(topic, run, sender=client.sender)
        with client.places[-1].hushed(client, topic):
            return publisher.publish(topic, run, sender=client.sender)

    def _make_room(self, client: Client) -> None:
        """Forget topics that are no more, if it takes that to subscribe to another."""
        limit: int = self._listener.settings["max-subscriptions"]
        if len(client.topics) < limit:
            return
        for topic in [topic for topic in client.topics if not self._exists(topic)]:
            client.places[-1].discard(client, topic)
            self._forget(client, topic)
        if len(client.topics) >= limit:
            raise LimitReached("subscriptions")

    def _forget(self, client: Client, topic: Topic) -> None:
        del client.topics[topic]
        self._listener.memory.free(SUBSCRIPTION_BYTES)

    def _exists(self, topic: Topic) -> bool:
        topics = self._listener.topics
        return topic.name in topics and topics.named(topic.name) is topic
