"""``Gathering``: small reads of several publishers, published together.

Where clients send a message at a time, or a few, a tick brings many small reads. Each would be
stored, encoded and routed on its own, most of which costs the same for any number of messages. So
these messages are gathered, and are published at the end of the tick, as if they had arrived then.

The first read of a tick is published at once, as many ticks have no other, unless several were
gathered in the tick before. Then reads that come while those of the tick are handled belong to it,
too, unless other messages wait to be sent at its end. Before anything else is published, a
subscription changes or a reply is sent, those that were gathered are: what a client does keeps its
order. Messages that get a reply each are not gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from pubsub.broker.routing.passing_mix import fits_in_tick, has_few_subscriptions
from pubsub.kernel import ColumnQueue

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import View
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.durability import Durability
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore
    from pubsub.kernel import Columns, Senders

MOST_BYTES = 4096
"""Bytes of the largest read that is gathered (see ``ColumnQueue``)."""
MOST_MESSAGES = MOST_BYTES // 64
"""Its messages, at most: each counts as many bytes more."""
MOST_READ = 2 * MOST_BYTES
"""Bytes of the largest read, its heads included, in which such messages are looked for."""
# Bytes that are gathered: at most about a thousand messages, which may have as many topics.
_TOGETHER = 64 * 1024
# Gathered reads of a tick from which on the first of the next tick is gathered, too.
_SEVERAL = 3


def _look_no_more(_while_true: Callable[[], bool]) -> None:
    pass


class Publishing(Protocol):
    """Publishes what was gathered; implemented by ``Dispatcher``."""

    def publish_together(
        self, topics: Sequence[Topic], columns: Columns, senders: Senders, protocol: str
    ) -> object: ...


class Gathering:
    """Gathers messages of one protocol, whose topics are all stored, or all not.

    ``topic`` and ``permitted`` are the last topic for which ``may_take`` was true, and the rights
    of a client that may publish to it: others with the same rights need not be checked again. They
    are None while nothing is gathered (``is_open``). ``look_again`` has further events handled
    before the tick ends (see ``TickEnds``).
    """

    __slots__ = (
        "_dispatcher", "_durability", "_has_few", "_protocol", "_router", "_several", "_store",
        "is_open", "look_again", "permitted", "queue", "topic",
    )  # fmt: skip

    def __init__(self, dispatcher: Publishing, store: IStore, router: Router) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._router = router
        self._protocol = ""
        self._durability: Durability | None = None
        self._several = self._has_few = False
        self.look_again: Callable[[Callable[[], bool]], object] = _look_no_more
        self.queue = ColumnQueue(MOST_BYTES, _TOGETHER)
        self.is_open = False
        self.topic: Topic | None = None
        self.permitted: View | None = None

    def takes(self, durability: Durability, protocol: str) -> bool:
        """Return whether messages of topics with this ``durability`` are gathered; begin to do so.

        The topics are not looked at. So it is false, too, if the router has many subscriptions.
        """
        if not self.is_open and not (self._router.gathers and self.begin(durability, protocol)):
            return False
        return self._has_few and durability is self._durability

    def begin(self, durability: Durability, protocol: str) -> bool:
        """Begin to gather messages of ``protocol`` that are stored with this ``durability``.

        False, and nothing is gathered, if each message has to be looked at in this tick.
        """
        router, store = self._router, self._store
        if (
            not router.gathers
            or router.forwarding is not None
            or router.waiting
            or router.gate.shut
            or router.memory.full
            or (durability and (store.trouble is not None or store.gate.shut))
        ):
            return False
        self.queue.open(protocol)
        self.is_open = True
        self._protocol, self._durability = protocol, durability
        # A change of a subscription ends this.
        self._has_few = has_few_subscriptions(router)
        router.gathered = self.publish
        router.flush_soon()
        if self._several:
            self.look_again(self._is_alone)
        return True

    def _is_alone(self) -> bool:
        """Return whether messages are gathered and no others wait for the end of the tick."""
        return self.is_open and not self._router.pending

    def may_take(self, topic: Topic) -> bool:
        """Return whether messages of ``topic`` may be put into the queue, which is open."""
        return (
            topic.durability is self._durability
            and topic.hosted
            and topic.upstream is None
            and not topic.blockers
        )

    def may_take_all(self, topics: Sequence[Topic]) -> bool:
        """Do as ``may_take`` for each of ``topics``."""
        durability = self._durability
        for topic in topics:
            # As in `may_take`, without a call for each.
            if topic.durability is not durability or topic.blockers:
                return False
            if not topic.hosted or topic.upstream is not None:
                return False
        # As for a read that is published at once: more are routed in slices, which senders prevent.
        return fits_in_tick(self._router, topics)

    def publish(self) -> None:
        """Publish what was gathered."""
        self._router.gathered = self.topic = self.permitted = None
        self.is_open = False
        reads = len(self.queue)
        columns, senders, topics = self.queue.take()
        if not reads:
            return
        # The tallies that publishers are linked with are topics.
        self._dispatcher.publish_together(topics, columns, senders, self._protocol)  # type: ignore[arg-type]
        self._several = reads >= _SEVERAL
        if self._several:
            # Also if this is the end of the tick: the next one probably has as many.
            self._router.gathers = True
