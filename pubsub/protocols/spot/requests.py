"""The requests of a client to the ROUTER, other than publications (spot §3)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from pubsub.broker.topic_space.prefix_subscriptions import PrefixSubscriptions
from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import Refused, TopicUnreachable
from pubsub.protocols.spot.commands import (
    Query,
    QueryResponse,
    QueryResponseEncoder,
    Subscribe,
    Unsubscribe,
)
from pubsub.protocols.spot.message_heads import publish_prefix
from pubsub.protocols.spot.subscriptions import Subscriptions

if TYPE_CHECKING:
    from pubsub.broker.slices import Work
    from pubsub.protocols.spot.role import RequestingClient

# Topics that one step of the answer to a query looks at.
_PAGE = 32


class Requests:
    """Carries out the requests of one client.

    ``prefix_of`` returns the frames before a topic's payloads.
    """

    def __init__(
        self,
        client: RequestingClient,
        prefix_readers: PrefixSubscriptions,
        prefix_of: Callable[[bytes], bytes] = publish_prefix,
    ) -> None:
        self._client = client
        self.subscriptions = Subscriptions(client, prefix_readers, prefix_of)

    def carry_out(self, request: Subscribe | Unsubscribe | Query | QueryResponse) -> None:
        """Carry out a request; raises Refused."""
        match request:
            case Subscribe(topic):
                self._subscribe(topic)
            case Unsubscribe(topic):
                self._unsubscribe(topic)
            case Query():
                self._client.carry_out(self._answer_query())
            case QueryResponse():
                # A well-formed command without meaning here, as nothing was queried.
                pass

    def _subscribe(self, topic: bytes) -> None:
        if topic.endswith(b"*"):
            self.subscriptions.add_prefix(topic[:-1], once=True)
            return
        client, topics = self._client, self._client.listener.topics
        name = topic_name(topic)
        if client.is_node and name in topics and topics.named(name).upstream is not None:
            # Messages of one broker are not relayed to a third (spot §7.4).
            raise TopicUnreachable(name)
        self.subscriptions.add(topic, hosted=client.is_node)

    def _unsubscribe(self, topic: bytes) -> None:
        if topic.endswith(b"*"):
            self.subscriptions.discard_prefix(topic[:-1], all_of_it=True)
        else:
            self.subscriptions.discard(topic)

    def _answer_query(self) -> Work:
        """Reply with the names of the topics hosted here that the peer may use (spot §3.3)."""
        client = self._client
        memory = client.listener.memory
        response = QueryResponseEncoder()
        held = 0
        try:
            topics = client.listener.topics.with_prefix(b"")
            while page := list(islice(topics, _PAGE)):
                added = response.add(
                    [t.name.encode() for t in page if t.hosted and self._may_use(t.name)]
                )
                memory.add(added)
                held += added
                yield
                if client.closing:
                    return
            client.reply_latest("topics", response.finish())
        finally:
            memory.free(held)

    def _may_use(self, name: str) -> bool:
        access = self._client.access
        if access.may_subscribe(name):
            return True
        try:
            access.check_publish(name)
        except Refused:
            return False
        return True
