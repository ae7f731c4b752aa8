"""``Gathering``: small reads of several publishers to one topic, published together.

Where clients send single messages, a tick brings many reads of one message. Each would be stored,
encoded and routed on its own, most of which costs the same for any number of messages. So these
messages are gathered, and are published at the end of the tick, as if they had arrived then.

The first read of a topic in a tick is published at once, as many ticks have no other, unless
several were gathered in the tick before. Before anything else is published, a subscription changes
or a reply is sent, those that were gathered are: what a client does keeps its order. Messages that
get a reply each are not gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pubsub.kernel import ColumnQueue

if TYPE_CHECKING:
    from pubsub.broker.access import View
    from pubsub.broker.router import Router
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import IStore
    from pubsub.kernel import Columns, LinkedTally, Senders

# Bytes of a read that is small (see ``ColumnQueue``), and reads that are gathered: together as much
# as one read can have.
_SMALL, _MOST = 1024, 128
# Gathered reads of a tick from which on the first of the next tick is gathered, too.
_SEVERAL = 3


class Publishing(Protocol):
    """Publishes what was gathered; implemented by ``Dispatcher``."""

    def publish_together(
        self, topic: Topic, columns: Columns, senders: Senders, protocol: str
    ) -> object: ...


class Gathering:
    """Gathers messages for ``Router.last_topic``, which ``dispatcher`` has published to last.

    ``put`` adds messages of a sender, which have been checked, and counts them for the publisher;
    it returns False while none of their protocol are gathered, and if they are too large or too
    many. ``permitted`` are the rights of the client whose messages were put last, None if none are
    gathered: others with the same rights need not be checked again.
    """

    __slots__ = (
        "_dispatcher", "_protocol", "_router", "_store", "_topic", "permitted", "put", "queue",
    )  # fmt: skip

    def __init__(self, dispatcher: Publishing, store: IStore, router: Router) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._router = router
        self._topic: Topic | None = None
        self._protocol = ""
        self.queue = ColumnQueue(_SMALL, _MOST)
        self.put = self.queue.put
        self.permitted: View | None = None

    def begin(
        self, topic: Topic, columns: Columns, sender: bytes, protocol: str, tally: LinkedTally
    ) -> bool:
        """Begin to gather, if nothing requires to look at each message, and ``put`` the first.

        ``topic`` is that of the router. Returns as ``put`` does.
        """
        router, store = self._router, self._store
        if (
            self.queue
            or topic is not router.last_topic
            or not topic.hosted
            or topic.upstream is not None
            or topic.blockers
            or router.forwarding is not None
            or router.waiting
            or router.gate.shut
            or router.memory.full
            or (topic.durability and (store.trouble is not None or store.gate.shut))
        ):
            return False
        self.queue.open(protocol, topic)
        if not self.put(columns, sender, protocol, tally):
            self.queue.take()
            return False
        self._topic, self._protocol = topic, protocol
        router.gathered = self.publish
        router.flush_soon()
        return True

    def publish(self) -> None:
        """Publish what was gathered."""
        self._router.gathered = None
        topic, self._topic, self.permitted = self._topic, None, None
        assert topic is not None
        several = len(self.queue) >= _SEVERAL
        columns, senders = self.queue.take()
        self._dispatcher.publish_together(topic, columns, senders, self._protocol)
        if several:
            # Also if this is the end of the tick: the next one probably has as many.
            self._router.last_topic = topic
