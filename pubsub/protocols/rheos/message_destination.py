"""A connection of rheos as a destination of messages, which several client ids may share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from pubsub.protocols.rheos.response_encoding import PROTOCOL, client_name

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import Encoding
    from pubsub.wire.connection import Connection


class ClientId:
    """A client id in use. ``destinations`` are its connections, the latest last; ``sender`` is the
    id as other protocols show it. ``owner`` is the proof and the name of the identity that it
    belongs to, or None while only anonymous clients have used it.

    ``topics`` has the destination of the messages of each topic; with None they have none, and
    ``starts`` says where the topic continues then, if ids are shared. ``key`` is that by which
    other brokers find the id.
    """

    __slots__ = (
        "destinations", "expiry", "id", "key", "owner", "pruned", "sender", "starts", "topics",
    )  # fmt: skip

    def __init__(self, client_id: bytes) -> None:
        self.id = client_id
        self.sender = client_name(client_id).encode()
        self.topics: dict[Topic, MessageDestination | None] = {}
        self.starts: dict[Topic, Position] = {}
        self.key = ""
        self.destinations: list[MessageDestination] = []
        self.owner: tuple[str, str] | None = None
        # How many topics of the broker had ended when those among the subscriptions were dropped.
        self.pruned = 0
        self.expiry: IDelayedCall | None = None


class IdSharing(Protocol):
    """See ``SharedIds``."""

    @property
    def enabled(self) -> bool:
        """Whether ids are shared."""

    def changed(self, client: ClientId) -> None:
        """The subscriptions of ``client`` have changed, or its connection."""

    def ended(self, client: ClientId) -> None:
        """``client`` has ended, or its subscriptions have."""


class MessageDestination:
    """A connection as a destination of messages.

    Several client ids may share it. A topic's messages are delivered once, even if several of them
    are subscribed.
    """

    __slots__ = (
        "_connection", "_encoding", "_open_outbox", "_readers", "_router", "clients", "closed",
        "known_ids",
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
        self._readers: dict[Topic, set[ClientId]] = {}
        self.clients: dict[bytes, ClientId] = {}
        """The client ids that are used here."""
        self.known_ids: set[bytes] = set()
        """Those of which it is known whether another broker has them."""
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

    def add(self, client: ClientId, topic: Topic, start: Position | None = None) -> None:
        """Deliver ``topic`` here for ``client``: the history from ``start`` on, if given."""
        self._readers.setdefault(topic, set()).add(client)
        encoding = self._encoding(topic)
        # The subscription is that of the client, and only moves.
        self._router.subscribe(self._open_outbox(), topic, encoding, start, admitted=True)

    def unsent(self) -> dict[Topic, Position]:
        """Return where each topic continues of which not everything is written here."""
        return {} if self._connection.outbox is None else self._connection.outbox.unsent()

    def discard(self, client: ClientId, topic: Topic) -> Position | None:
        """Stop delivering ``topic`` here for ``client``.

        Returns where it continues, if this connection is behind.
        """
        readers, outbox = self._readers.get(topic, set()), self._open_outbox()
        self._router.complete(outbox)
        position = None if outbox.cursor is None else outbox.cursor.continuation(topic)
        readers.discard(client)
        if not readers:
            self._readers.pop(topic, None)
            self._router.unsubscribe(outbox, topic)
        return position

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """Return whether a client that reads ``topic`` here has not sent ``batch`` itself."""
        readers = self._readers.get(topic, set())
        return batch.protocol != PROTOCOL or any(one.sender != batch.sender for one in readers)

    def shut(self) -> dict[Topic, Position]:
        """Return where all topics continue; the connection has ended."""
        outbox = self._connection.outbox
        return {} if outbox is None else outbox.shut_and_get_offsets()

    def release(self) -> Work:
        """Forget all readers; the connection has ended."""
        while self._readers:
            self._readers.popitem()
            yield

    def clear(self, topic: Topic) -> set[ClientId]:
        """Remove and return the clients that read ``topic`` here."""
        return self._readers.pop(topic, set())

    def excluding(self, client: ClientId, topic: Topic) -> AbstractContextManager[None]:
        """Return a context in which messages on ``topic`` are not delivered for ``client``.

        They are delivered if another client id reads the topic here.
        """
        if self._readers.get(topic) == {client}:
            return self._router.excluding(self._open_outbox(), topic)
        return nullcontext()
