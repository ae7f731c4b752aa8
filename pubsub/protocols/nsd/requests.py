"""The requests of nsd other than Get: channels, subscriptions, messages (nsd §3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.errors import (
    MessageTooLarge,
    TopicNotFound,
)
from pubsub.kernel import Columns
from pubsub.protocols.nsd.channel_readers import channel_readers
from pubsub.protocols.nsd.codec import (
    SUCCESS,
    Get,
    Open,
    Publish,
    Request,
    Subscribe,
    Unsubscribe,
    success_at,
)
from pubsub.protocols.nsd.identity_proof import (
    owner_of,
)
from pubsub.protocols.nsd.message_heads import source_of
from pubsub.wire.connection import Connection

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.publisher import Publisher
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.protocols.nsd.identities import Identities
    from pubsub.protocols.nsd.identity_moves import IdentityMoves
    from pubsub.protocols.nsd.message_heads import Source


class Requests:
    """Carries out the requests of the clients of a listener.

    ``client`` is the connection that has sent the request and answers it. The methods raise Refused
    where nothing has been done.
    """

    def __init__(
        self, listener: Listener, identities: Identities, moves: IdentityMoves | None
    ) -> None:
        self._listener = listener
        self._identities = identities
        self.moves = moves
        """Shares the identities with other brokers, if anything does."""

    def check(self, client: Connection, request: Request) -> None:
        """Raise the errors of Open, Subscribe and Unsubscribe; change nothing."""
        access, identities = client.access, self._identities
        match request:
            case Open():
                access.check_create(request.identity)
                identities.check_room(request.identity, None, *self._limits)
            case Subscribe():
                access.check_subscribe(request.channel)
                self._listener.topics.named(request.channel)
                identities.check_room(request.identity, None, *self._limits)
            case Unsubscribe():
                self._unsubscribed_topic(request)

    @property
    def _limits(self) -> tuple[int, int]:
        settings = self._listener.settings
        return settings["max-identities"], settings["max-subscriptions"]

    def carry_out(self, client: Connection, request: Request) -> Topic | None:
        """Carry out a request other than Get; return its topic, which an Unsubscribe may lack."""
        access = client.access
        match request:
            case Open():
                return self._open(client, request.identity)
            case Publish():
                message = request.message
                if len(message.body) > self._listener.settings["max-body"]:
                    self._check_publish(client, request.identity)
                    raise MessageTooLarge(len(message.body))
                body = Columns.one(message.body.encode())
                return self.publish(client, source_of(request), body)[0]
            case Subscribe():
                # First, as a client without the right may not find out which channels there are.
                access.check_subscribe(request.channel)
                topic = self._listener.topics.named(request.channel)
                self._subscribe(client, request.identity, request.channel)
            case Unsubscribe():
                if not self._identities.has(request.identity, request.channel):
                    access.check_subscribe(request.channel)
                found = self._unsubscribed_topic(request)
                self._unsubscribe(request.identity, request.channel)
                return found
            case Get():
                raise AssertionError("answered by _get")
        return topic

    def _unsubscribed_topic(self, request: Unsubscribe) -> Topic | None:
        """Return the topic of the channel; raises TopicNotFound.

        An identity can have a channel whose topic is refused (see ``ChannelReaders``).
        """
        if self._identities.has(request.identity, request.channel):
            return self._listener.topics.get(request.channel)
        return self._listener.topics.named(request.channel)

    def _open(self, client: Connection, name: str) -> Topic:
        access = client.access
        access.check_create(name)
        readable = access.may_subscribe(name)
        if self._identities.is_elsewhere(name):
            # It is subscribed there.
            return self._listener.topics.create(name)
        self._identities.check_room(name, name if readable else None, *self._limits)
        topic = self._listener.topics.create(name)
        self._identities.open(name)
        if readable:
            self._subscribe(client, name, name)
        return topic

    def _check_publish(self, client: Connection, identity: str) -> Publisher:
        # First, as a client without the right may not find out which channels there are.
        publisher = client.publisher
        assert publisher is not None
        publisher.access.check_publish(identity)
        if not self._identities.opened(identity):
            raise TopicNotFound(identity)
        return publisher

    def publish(self, client: Connection, source: Source, columns: Columns) -> tuple[Topic, Batch]:
        """Publish the bodies in ``columns``; return the accepted messages."""
        publisher = self._check_publish(client, source.identity)
        # After a restart an identity may be known before its channel is.
        topic = self._listener.topics.create(source.identity)
        headers = [dict(source.extra)] * columns.count if source.extra else None
        return topic, publisher.publish(topic, columns, headers, source.sender)

    def _subscribe(self, client: Connection, name: str, channel: str) -> None:
        if self._identities.subscribe(name, channel, *self._limits, owner_of(client, name)):
            listener = self._listener
            listener.router.read_history(listener.topics.named(channel))

    def _unsubscribe(self, name: str, channel: str) -> None:
        if self._identities.unsubscribe(name, channel):
            channel_readers(self._listener).leave(channel)

    def subscribed(self, request: Subscribe) -> bytes:
        """Return the response to a Subscribe: with the position, if that was requested."""
        if not request.position:
            return SUCCESS
        store = self._listener.store
        if self.moves is not None:
            when, continues = self.moves.continuation(request)
            return success_at(when, store.epoch, continues)
        after = store.continuation(request.epoch, request.after) if request.epoch else None
        if after is None:
            return success_at(store.next_offset, store.epoch, False)
        # Beyond the end, a Get would have nothing until the history has grown so far.
        return success_at(min(after, store.next_offset), store.epoch, True)


def topic_of(request: Request) -> str:
    """Return the channel of a request."""
    if isinstance(request, Subscribe | Unsubscribe):
        return request.channel
    return request.identity
