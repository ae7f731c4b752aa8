"""The publishing side of a connection: checks, limits and backpressure, once a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub.broker.message_run import MessageRun
from pubsub.errors import RateLimited

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch, Headers
    from pubsub.broker.limits import RateLimiter
    from pubsub.broker.listener import Listener
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Publishing


class Publisher:
    """Publishes for one connection of ``listener``, as ``sender``.

    ``connection`` is held while a topic it publishes to is blocked by a slow subscriber, while
    the process is at its memory bound, or while the history is behind. Where there is none to hold
    (a datagram's sender) such messages are refused as RateLimited instead.
    """

    __slots__ = ("_broker", "_connection", "_limiters", "listener", "messages", "nbytes", "sender")

    def __init__(self, listener: Listener, connection: Publishing | None, sender: bytes) -> None:
        self.listener = listener
        self.sender = sender
        # What was accepted so far.
        self.messages = self.nbytes = 0
        self._broker = listener.broker
        self._connection = connection
        limiters = (listener.rate.limiter(self._broker.seconds), listener.limiter)
        self._limiters: tuple[RateLimiter, ...] = tuple(x for x in limiters if x is not None)

    def publish(
        self,
        topic: Topic,
        run: MessageRun,
        headers: Sequence[Headers] | None = None,
        sender: bytes | None = None,
    ) -> Batch:
        """Publish the messages of ``run``, whose ``headers`` are theirs one by one.

        Returns what was accepted: all of it, or the messages before the first that a rate limit
        refused. ``sender`` stands in for the connection's own. Raises NotAuthorized,
        HistoryUnavailable, or RateLimited if nothing at all was accepted.
        """
        self.listener.access.check_publish(topic.name)
        if self._connection is None and (
            topic.blockers
            or self._broker.memory.full
            or (topic.durability and self._broker.store.gate.shut)
        ):
            raise RateLimited("a subscriber, the memory bound or the history holds this topic")
        if self._limiters:
            admitted = self._admit(run)
            if admitted < len(run.payloads):
                run = MessageRun(run.payloads[:admitted], run.size)
                headers = None if headers is None else headers[:admitted]
        batch = self._broker.publish(
            topic,
            run,
            self.sender if sender is None else sender,
            self.listener.protocol,
            headers,
        )
        self.messages += len(batch.payloads)
        self.nbytes += batch.nbytes
        if self._connection is not None:
            if topic.blockers:
                topic.wait(self._connection)
            if self._broker.memory.full:
                self._broker.memory.wait(self._connection)
            if topic.durability and self._broker.store.gate.shut:
                self._broker.store.gate.wait(self._connection)
        return batch

    def _admit(self, run: MessageRun) -> int:
        """How many messages of ``run`` every limiter lets pass; they are charged for them."""
        payloads, nbytes = run.payloads, run.nbytes
        admitted = len(payloads)
        for limiter in self._limiters:
            admitted = min(admitted, limiter.admissible(payloads, nbytes))
        if not admitted:
            raise RateLimited(self.listener.protocol)
        if admitted < len(payloads):
            nbytes = sum(map(len, payloads[:admitted]))
        for limiter in self._limiters:
            limiter.take(admitted, nbytes)
        return admitted
