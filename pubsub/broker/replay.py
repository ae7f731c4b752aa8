"""Catching up: what a resumed subscriber missed, read from the history, then the live topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.service import BrokerService
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Encoding

log = Logger()
PAGE_BYTES = 256 * 1024


class Replay:
    """Delivers ``subscriptions`` from ``offset`` on to ``outbox``, then subscribes it.

    Pages of the history follow one another as the outbox drains. The page that reaches the end
    of the log and the subscription to what comes next happen in one step, so that nothing is
    delivered twice and nothing falls between.
    """

    def __init__(
        self,
        broker: BrokerService,
        outbox: Outbox,
        subscriptions: Mapping[Topic, Encoding],
        offset: int,
    ) -> None:
        self._broker = broker
        self._outbox = outbox
        self._subscriptions = dict(subscriptions)
        self._offset = offset

    @property
    def offset(self) -> int:
        """Where the next page starts."""
        return self._offset

    @property
    def subscriptions(self) -> Mapping[Topic, Encoding]:
        """What has still to become live."""
        return self._subscriptions

    def add(self, topic: Topic, encoding: Encoding) -> None:
        """Subscribe to one more topic, from the end of the log on."""
        self._broker.router.subscribe(self._outbox, topic, encoding)

    def discard(self, topic: Topic) -> None:
        """Leave ``topic`` out from now on."""
        self._subscriptions.pop(topic, None)

    def start(self) -> Deferred[None]:
        """Begin; the Deferred fires when the subscriptions are live or the outbox is shut."""
        return ensureDeferred(self._run()).addErrback(
            lambda failure: log.failure("replay to {client!r}", failure, client=self._outbox.label)
        )

    async def _run(self) -> None:
        store = self._broker.store
        self._count_expired()
        while not self._outbox.closed:
            names = frozenset(topic.name for topic in self._subscriptions)
            page = await store.read(self._offset, names, PAGE_BYTES)
            for batch in page.batches:
                self._deliver(batch)
            self._offset = page.next_offset
            if self._offset >= store.next_offset:
                break
            await self._drained()
        if self._outbox.closed:
            return
        for topic, encoding in self._subscriptions.items():
            self._broker.router.subscribe(self._outbox, topic, encoding)
        self._subscriptions.clear()
        # Nothing else would send the last page before the next message is published.
        self._outbox.flush()

    def _deliver(self, batch: Batch) -> None:
        topic = self._broker.topics.named(batch.topic)
        encoding = self._subscriptions.get(topic)
        fitting = batch if encoding is None else batch.within(encoding.limit)
        if encoding is None or fitting is None or self._outbox.closed:
            return
        if not self._outbox.recheck(topic, None):
            self.discard(topic)
            return
        count = len(fitting.payloads)
        self._outbox.deliver(encoding.encode(fitting), count, topic, fitting.offset)
        self._broker.counters.delivered += count

    def _drained(self) -> Deferred[None]:
        self._outbox.flush()
        done: Deferred[None] = Deferred()
        self._outbox.when_drained(lambda: self._broker.at_turn_end(lambda: done.callback(None)))
        return done

    def _count_expired(self) -> None:
        """What left the history before it could be replayed is lost, and said to be."""
        lost = self._broker.store.first_offset - self._offset
        if lost > 0:
            self._broker.counters.drop(self._outbox.label, "*", "expired", lost)
            self._offset = self._broker.store.first_offset
