"""Clients behind a ROUTER: a proxy's, or a REQ socket that numbers its requests (spot §3.6).

The routing ids before a request name the client. They come before each frame that is sent to it,
and the sockets on the way remove them again. A client exists here while it has subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.errors import LimitReached
from pubsub.protocols.spot.message_heads import publish_prefix
from pubsub.protocols.spot.requests import Requests

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.prefix_subscriptions import PrefixSubscriptions
    from pubsub.broker.topic_space.topics import KeyChange, Topic
    from pubsub.protocols.spot.commands import Query, QueryResponse, Subscribe, Unsubscribe
    from pubsub.protocols.spot.connection import ZmtpConnection


class RoutedClient:
    """One client behind ``connection``, with an outbox of its own: a ``RequestingClient``.

    ``route`` are the frames with its routing ids.
    """

    is_node = False

    def __init__(
        self, connection: ZmtpConnection, route: bytes, prefix_readers: PrefixSubscriptions
    ) -> None:
        self._connection = connection
        self._route = route
        self.listener = connection.listener
        self.outbox: Outbox | None = None
        self.requests = Requests(self, prefix_readers, lambda name: route + publish_prefix(name))

    @property
    def access(self) -> AccessRules:
        """See ``RequestingClient``: that of the connection."""
        return self._connection.access

    @property
    def closing(self) -> bool:
        """See ``RequestingClient``."""
        return self._connection.closing

    @property
    def label(self) -> str:
        """See ``Subscriber``."""
        return self._connection.label

    def open_outbox(self) -> Outbox:
        """See ``RequestingClient``."""
        if self.outbox is None:
            self.outbox = self.listener.outbox(self._connection.consumer, self)
            if self._connection.output_full:
                self.outbox.pause()
        return self.outbox

    def carry_out(self, work: Work) -> None:
        """See ``RequestingClient``."""
        self._connection.carry_out(work)

    def refuse(self, reason: str, count: int = 1, topic: str | None = None) -> None:
        """See ``RequestingClient``."""
        self._connection.refuse(reason, count, topic)

    def reply_latest(self, kind: str, data: bytes) -> None:
        """See ``RequestingClient``."""
        self._connection.reply(self._route + data)

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        return self._connection.recheck(topic, change)

    def receives(self, topic: Topic, batch: Batch) -> bool:
        """See ``Subscriber``."""
        return True

    def evict(self, reason: str) -> None:
        """See ``Subscriber``: the connection holds the memory."""
        self._connection.evict(reason)

    def close(self) -> None:
        """End the subscriptions."""
        self.requests.subscriptions.clear()
        if self.outbox is not None:
            self.outbox.shut("disconnected")
            self._connection.add_sent(*self.outbox.written)


class RoutedClients:
    """The clients behind one connection, by their routes.

    The broker is not notified when a client ends. Together they have at most as many subscriptions
    as a connection may have; beyond that the client that has been silent for the longest is
    forgotten.
    """

    def __init__(self, connection: ZmtpConnection, prefix_readers: PrefixSubscriptions) -> None:
        self._connection = connection
        self._prefix_readers = prefix_readers
        self._clients: dict[bytes, RoutedClient] = {}
        self._subscriptions = 0

    def carry_out(
        self, route: bytes, request: Subscribe | Unsubscribe | Query | QueryResponse
    ) -> None:
        """Carry out a request of the client at ``route``; raises Refused."""
        client = self._clients.pop(route, None)
        if client is None:
            self._connection.listener.memory.reserve(CONNECTION_BYTES)
            client = RoutedClient(self._connection, route, self._prefix_readers)
        before = len(client.requests.subscriptions)
        try:
            client.requests.carry_out(request)
        finally:
            after = len(client.requests.subscriptions)
            self._subscriptions += after - before
            if after:
                # The one that was heard last is at the end.
                self._clients[route] = client
                self._forget_silent()
            else:
                self._close(client)

    def _forget_silent(self) -> None:
        limit: int = self._connection.listener.settings["max-subscriptions"]
        while self._subscriptions > limit and len(self._clients) > 1:
            oldest = self._clients.pop(next(iter(self._clients)))
            self._subscriptions -= len(oldest.requests.subscriptions)
            self._close(oldest)
            self._connection.refuse(LimitReached.reason)

    def _close(self, client: RoutedClient) -> None:
        client.close()
        self._connection.listener.memory.free(CONNECTION_BYTES)

    def outboxes(self) -> Iterable[Outbox]:
        """Return the outboxes of all clients."""
        return [one.outbox for one in self._clients.values() if one.outbox is not None]

    def pause(self) -> None:
        """The transport has more than it can send now."""
        for client in self._clients.values():
            if client.outbox is not None:
                client.outbox.pause()

    def resume(self) -> None:
        """The transport has sent all its bytes."""
        for client in tuple(self._clients.values()):
            if client.outbox is not None and not self._connection.output_full:
                client.outbox.resume()

    def close(self) -> None:
        """The connection has ended."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            self._close(client)
