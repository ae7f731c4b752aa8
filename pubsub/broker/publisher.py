"""The publishing side of a connection: checks, limits and backpressure, once a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pubsub.broker.message_run import MessageRun
from pubsub.errors import RateLimited

if TYPE_CHECKING:
    from pubsub.broker.access import AccessRules
    from pubsub.broker.batch import Batch, Headers
    from pubsub.broker.dispatcher import Dispatcher
    from pubsub.broker.limits import MemoryBudget, RateLimiter
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Holdable, IStore


class PublishingRules(Protocol):
    """What a publisher asks its listener; access rules may change while it publishes."""

    protocol: str
    access: AccessRules
    memory: MemoryBudget
    store: IStore


class PublishingConnection(Protocol):
    """A connection that publishes; ``publisher`` is set by ``Listener.publisher``."""

    publisher: Publisher | None

    def hold(self, reason: object) -> None: ...

    def release(self, reason: object) -> None: ...


class Publisher:
    """Publishes for one connection, as ``sender``, by the listener's ``rules``.

    ``connection`` is held while a topic that it publishes to is blocked by a slow subscriber, while
    the process is at its memory bound, or while the history is behind. With None (the sender of a
    datagram cannot be held) such messages are refused as RateLimited instead.
    ``messages`` and ``nbytes`` count what was accepted.
    """

    __slots__ = (
        "_connection",
        "_dispatcher",
        "_limiters",
        "_rules",
        "messages",
        "nbytes",
        "sender",
    )

    def __init__(
        self,
        rules: PublishingRules,
        dispatcher: Dispatcher,
        limiters: tuple[RateLimiter, ...],
        connection: Holdable | None,
        sender: bytes,
    ) -> None:
        self.sender = sender
        self.messages = self.nbytes = 0
        self._rules = rules
        self._dispatcher = dispatcher
        self._limiters = limiters
        self._connection = connection

    def publish(
        self,
        topic: Topic,
        run: MessageRun,
        headers: Sequence[Headers] | None = None,
        sender: bytes | None = None,
    ) -> Batch:
        """Publish the messages of ``run``; ``headers`` has one mapping for each of them.

        Returns what was accepted: all messages, or those before the first that a rate limit
        refused. ``sender`` replaces the connection's own. Raises NotAuthorized,
        HistoryUnavailable, TopicUnreachable, or RateLimited if no message was accepted.
        """
        rules = self._rules
        rules.access.check_publish(topic.name)
        if self._connection is None and (
            topic.blockers or rules.memory.full or (topic.durability and rules.store.gate.shut)
        ):
            raise RateLimited("a subscriber, the memory bound or the history holds this topic")
        if self._limiters:
            admitted = self._admit(run)
            if admitted < len(run.payloads):
                run = MessageRun(run.payloads[:admitted], run.size)
                headers = None if headers is None else headers[:admitted]
        batch = self._dispatcher.publish(
            topic,
            run,
            self.sender if sender is None else sender,
            rules.protocol,
            headers,
        )
        self.messages += len(batch.payloads)
        self.nbytes += batch.nbytes
        if self._connection is not None:
            if topic.blockers:
                topic.wait(self._connection)
            if rules.memory.full:
                rules.memory.wait(self._connection)
            if topic.durability and rules.store.gate.shut:
                rules.store.gate.wait(self._connection)
        return batch

    def _admit(self, run: MessageRun) -> int:
        """Return how many messages of ``run`` every limiter admits, and charge for them."""
        payloads, nbytes = run.payloads, run.nbytes
        admitted = len(payloads)
        for limiter in self._limiters:
            admitted = min(admitted, limiter.admissible(payloads, nbytes))
        if not admitted:
            raise RateLimited(self._rules.protocol)
        if admitted < len(payloads):
            nbytes = sum(map(len, payloads[:admitted]))
        for limiter in self._limiters:
            limiter.take(admitted, nbytes)
        return admitted
